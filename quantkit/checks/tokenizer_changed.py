"""The tokenizer or chat template is missing, or is not the source's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quantkit.checkpoint.filenames import VOCABULARIES
from quantkit.checkpoint.files import inside, read_json, sha256
from quantkit.core.check import Check, Fault
from quantkit.core.errors import QuantkitError
from quantkit.model.beside import Beside

FILE, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
LARGEST = 256 * 2**20
MEANING = ("model", "added_tokens", "normalizer", "pre_tokenizer", "decoder")
"""Parts of tokenizer.json that decide on tokens; padding and truncation are settings."""
SPELLED = ("bos_token", "eos_token", "add_bos_token", "add_eos_token")


def find(beside: Beside) -> Iterator[Fault]:
    """Vocabulary, special tokens and template, by what they say: tools save them again."""
    here, there = beside.artifact.checkpoint.folder, beside.source.checkpoint.folder
    if _vocabulary(there) and not _vocabulary(here):
        yield Fault(FILE, "the folder has no vocabulary of a tokenizer, and the source has one")
        return
    for name in (FILE, SETTINGS, "tokenizer.model"):
        both = (here / name).is_file() and (there / name).is_file()
        if both and (said := _differs(here, there, name)) is not None:
            yield Fault(name, f"`{name}` differs from the source's{said}")
    mine, theirs = _template(here), _template(there)
    if theirs is not None and mine != theirs:
        what = "is missing" if mine is None else "differs from the source's"
        yield Fault(TEMPLATE, f"the chat template {what}")


def _vocabulary(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in VOCABULARIES)


def _differs(here: Path, there: Path, name: str) -> str | None:
    """What differs between two files of one name, as the end of a sentence; None where nothing."""
    mine, theirs = inside(here, name), inside(there, name)
    if sha256(mine) == sha256(theirs):
        return None
    if name == "tokenizer.model":
        return ""
    parts = MEANING if name == FILE else SPELLED
    try:
        a, b = (read_json(path, LARGEST, infinite=True) for path in (mine, theirs))
    except QuantkitError as error:
        return f": {error.why or error.what}"
    apart = [part for part in parts if _said(a, part) != _said(b, part)]
    return f" in {', '.join(apart)}" if apart else None


def _said(document: Any, part: str) -> Any:
    """A part of a tokenizer's file; a token that is spelled out is its content."""
    value = document.get(part) if isinstance(document, dict) else None
    if isinstance(value, dict) and "content" in value:
        return value["content"]
    if part == "model" and isinstance(value, dict):
        merges = value.get("merges") or ()
        spelled = [m if isinstance(m, str) else " ".join(map(str, m)) for m in merges]
        return value.get("vocab"), spelled
    return value


def _template(folder: Path) -> str | None:
    """The chat template, from its file or from the tokenizer's settings."""
    if (folder / TEMPLATE).is_file():
        return inside(folder, TEMPLATE).read_text(encoding="utf-8", errors="replace").strip()
    if not (folder / SETTINGS).is_file():
        return None
    try:
        stated = read_json(inside(folder, SETTINGS), infinite=True)
    except QuantkitError:
        return None
    found = stated.get("chat_template") if isinstance(stated, dict) else None
    return found.strip() if isinstance(found, str) else None


CHECK = Check(
    "source",
    "the tokenizer or chat template is missing, or is not the source's",
    "copy the tokenizer's files from the source",
    find,
    1,
)
