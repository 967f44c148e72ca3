"""Evaluation text: token windows, and everything needed to say on what a model was scored."""

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quantkit.calibration.text import read_documents
from quantkit.calibration.tokens import Calibration, Tokenizer, hostile_tokenizer, tokenize
from quantkit.checkpoint.files import sha256
from quantkit.core.errors import InputError

SMOKE = Path(__file__).with_name("smoke.jsonl")
SHIPPED = (None, "default")

ONE_BOS = (
    "in plain text only the first window starts with BOS, as in the usual computation; a model "
    "that needs BOS scores worse for it: documents of a .jsonl file get it in every window"
)


@dataclass(frozen=True)
class EvaluationText:
    """Windows of text and the protocol that made them.

    `tokens` is (windows, length) int64, without padding or overlap. `clusters` names the document
    of each window, the unit of the standard errors.
    """

    tokens: torch.Tensor
    clusters: tuple[int, ...]
    protocol: Mapping[str, Any]
    notes: tuple[str, ...] = ()


def read_text(
    source: str | None, tokenizer: Tokenizer, sequence_length: int, windows: int | None = None
) -> EvaluationText:
    """The first `windows` windows of `source`, all of them by default.

    None or "default" is the small text that ships with quantkit. A .txt file is tokenized whole
    and cut as it comes, which gives the perplexity that papers report (protocol `plain`). Documents
    of any other source are joined, and each window starts as the tokenizer starts a text
    (`documents`).

    Raises:
        InputError: no such text, or it does not fill one window.
    """
    if sequence_length < 2 or (windows is not None and windows < 1):
        raise InputError(
            f"{windows} windows of {sequence_length} tokens predict nothing",
            hint="--sequence-length 512 --windows 16",
        )
    name = str(SMOKE) if source in SHIPPED else str(source)
    path = Path(name)
    count = sys.maxsize if windows is None else windows
    plain = path.suffix == ".txt" and path.is_file()
    if plain:
        tokens = _plain_windows(path, tokenizer, sequence_length, count)
        clusters = tuple(range(len(tokens)))
    else:
        found = tokenize(read_documents(name), tokenizer, count, sequence_length, name)
        tokens, clusters = found.input_ids, _clusters(found)
    bos = _bos(tokens, tokenizer)
    protocol = {
        "name": "plain" if plain else "documents",
        "text": "smoke" if source in SHIPPED else path.name if path.exists() else name,
        "text_sha256": sha256(path) if path.is_file() else None,
        "tokens_sha256": hashlib.sha256(tokens.numpy().astype("<i8").tobytes()).hexdigest(),
        "sequence_length": sequence_length,
        "windows": len(tokens),
        "bos": bos,
    }
    return EvaluationText(tokens, clusters, protocol, (ONE_BOS,) if bos == "first window" else ())


def _plain_windows(path: Path, tokenizer: Tokenizer, length: int, count: int) -> torch.Tensor:
    text = "".join(document.text or "" for document in read_documents(str(path)))
    # Quiet: the text is longer than the model's context, its windows are not.
    with hostile_tokenizer(path.name):
        ids = tokenizer(text, verbose=False)["input_ids"]
    windows = min(count, len(ids) // length)
    if windows == 0:
        raise InputError(
            f"`{path}` has {len(ids):,} tokens, a window needs {length:,}",
            hint=f"--sequence-length {max(2, len(ids))}, or more text",
        )
    return torch.tensor(ids[: windows * length], dtype=torch.int64).view(windows, length)


def _clusters(found: Calibration) -> tuple[int, ...]:
    """The documents that the windows start in; one document alone has no spread, its windows do."""
    documents = found.documents
    return documents if len(set(documents)) > 1 else tuple(range(len(documents)))


def _bos(tokens: torch.Tensor, tokenizer: Any) -> str:
    """Which windows start with BOS."""
    firsts = tokens[:, 0].tolist()
    bos = getattr(tokenizer, "bos_token_id", None)
    if firsts[0] != bos:
        return "none"
    return "every window" if set(firsts) == {bos} else "first window"
