"""Token windows for calibration, and a ledger of how the text was used."""

import os
import struct
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast

import torch

from quantkit.calibration import chat
from quantkit.calibration.bounded import bounded
from quantkit.calibration.chat import Tokenizer
from quantkit.calibration.record import Document
from quantkit.checkpoint.filenames import VOCABULARIES
from quantkit.core.errors import InputError, QuantkitError, RefusedError
from quantkit.core.session import Session

PROBE = "".join(map(chr, range(32, 127))) + " the quick brown fox\n\n\u00e9\u4e2d\U0001f600"
THREADS = "TOKENIZERS_PARALLELISM"
"""Environment variable of the tokenizers library, which reads it at each call."""
MOST_TOKENS = 16
"""For a character: the bytes of one, with room for a prefix."""
Form = Literal["text", "template", "template failed", "no template"]


@dataclass(frozen=True)
class Ledger:
    """How the text was used; stored in the manifest.

    `documents_read` = `documents_used` + the sum of `documents_dropped` (reason -> count).
    `documents_truncated` counts the used documents that are only partly in the windows.
    `chat_template_applied` counts the used conversations rendered with the tokenizer's chat
    template, `chat_template_failed` those on which it failed, which became plain "role: content".
    `sha256` is the hash of the shape and the token ids, as little-endian int64.
    """

    source: str
    documents_read: int
    documents_used: int
    documents_dropped: dict[str, int]
    documents_truncated: int
    tokens: int
    samples: int
    sequence_length: int
    chat_template_applied: int
    chat_template_failed: int
    sha256: str


@dataclass(frozen=True)
class Calibration:
    """`input_ids`, int64 (samples, sequence_length), without padding, and their ledger.

    `documents` has, for each sample, the index of the document that it starts in, counted from 0
    over the used documents.
    """

    input_ids: torch.Tensor
    ledger: Ledger
    documents: tuple[int, ...]


@dataclass
class _Stream:
    """Token ids of the documents in order, joined with EOS, and the span of each document."""

    ids: "array[int]" = field(default_factory=lambda: array("q"))
    spans: list[tuple[int, int, Form]] = field(default_factory=list)
    read: int = 0
    empty: int = 0


def tokenize(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    samples: int,
    sequence_length: int,
    source: str,
) -> Calibration:
    """Packed windows of exactly `sequence_length` tokens, cut from consecutive documents.

    Conversations are rendered with the tokenizer's chat template, with all turns. Documents are
    joined with EOS, if the tokenizer has one. Attention across documents does not harm input
    statistics; padding would. Every window starts with the prefix that the tokenizer puts before a
    text (usually BOS, or nothing), because the attention sink at position 0 depends on it.

    Reads only as many documents as fill the windows. If the text is shorter than `samples` windows,
    returns the full ones. The windows for fewer samples are a prefix of those for more.

    Raises:
        InputError: the text does not fill one window, `samples` or `sequence_length` is too small,
            or the tokenizer fails on a text.
    """
    start = _start(tokenizer)
    room = sequence_length - len(start)
    if samples < 1 or room < 1:
        raise InputError(
            f"{samples} samples of {sequence_length} tokens leave no room for text",
            why=f"the tokenizer's prefix takes {len(start)} tokens of each sample",
            hint="--samples 128 --sequence-length 2048",
        )
    stream = _fill(documents, tokenizer, start, samples * room)
    windows = min(samples, len(stream.ids) // room)
    if windows == 0:
        shorter = len(stream.ids) + len(start)
        raise InputError(
            f"`{source}` has {len(stream.ids):,} tokens, but a sample needs {sequence_length:,}",
            hint=f"--sequence-length {shorter}, or more text" if stream.ids else "use another text",
        )
    body = torch.tensor(stream.ids[: windows * room], dtype=torch.int64).view(windows, room)
    head = torch.tensor(start, dtype=torch.int64).expand(windows, len(start))
    input_ids = torch.cat([head, body], dim=1)
    firsts = [first for first, _, _ in stream.spans]
    return Calibration(
        input_ids,
        _ledger(source, stream, windows * room, input_ids),
        tuple(bisect_right(firsts, window * room) - 1 for window in range(windows)),
    )


def _start(tokenizer: Tokenizer) -> list[int]:
    """Ids that the tokenizer puts before any text, such as BOS.

    Tokenizers do not state them: they are what precedes the ids of "a" if special tokens are added.
    """
    with hostile_tokenizer():
        bare = list(tokenizer("a", add_special_tokens=False)["input_ids"])
        full = list(tokenizer("a")["input_ids"])
    for length in range(len(full) - len(bare) + 1):
        if full[length : length + len(bare)] == bare:
            return full[:length]
    return []


def _fill(
    documents: Iterable[Document], tokenizer: Tokenizer, start: list[int], enough: int
) -> _Stream:
    """The stream of at least `enough` ids, or of all documents if they have fewer."""
    stream = _Stream()
    render = chat.renderer(tokenizer)
    eos = tokenizer.eos_token_id
    for document in documents:
        stream.read += 1
        text, form = _text(document, render)
        ids = _encode(tokenizer, text, document.source)
        if start and ids[: len(start)] == start:
            del ids[: len(start)]  # the template writes BOS itself, and each window gets it anyway
        if not ids:
            stream.empty += 1
            continue
        first = len(stream.ids)
        stream.ids.extend(ids)
        stream.spans.append((first, len(stream.ids), form))
        # Many templates end the last turn with EOS, some with a newline after it: do not repeat it.
        if eos is not None and not (form == "template" and eos in ids[-2:]):
            stream.ids.append(eos)
        if len(stream.ids) >= enough:
            break
    return stream


def _encode(tokenizer: Tokenizer, text: str, where: str) -> list[int]:
    if not text:
        return []
    with hostile_tokenizer(where):
        # verbose=False: no warning that a document exceeds the context; its windows do not.
        return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _text(document: Document, render: chat.Render | None) -> tuple[str, Form]:
    if document.messages is None:
        return document.text or "", "text"
    if not any(message["content"].strip() for message in document.messages):
        return "", "text"
    if render is None:
        return chat.plain(document.messages), "no template"
    rendered = render(document.messages)
    if rendered is None:
        return chat.plain(document.messages), "template failed"
    return rendered, "template"


def _ledger(source: str, stream: _Stream, limit: int, input_ids: torch.Tensor) -> Ledger:
    """The ledger of `input_ids` (samples, sequence_length), the first `limit` ids of `stream`."""
    used = [span for span in stream.spans if span[0] < limit]
    forms = Counter(form for _, _, form in used)
    dropped = {"empty": stream.empty, "after the last full sample": len(stream.spans) - len(used)}
    samples, sequence_length = input_ids.shape
    return Ledger(
        source=source,
        documents_read=stream.read,
        documents_used=len(used),
        documents_dropped={reason: count for reason, count in dropped.items() if count},
        documents_truncated=sum(end > limit for _, end, _ in used),
        tokens=input_ids.numel(),
        samples=samples,
        sequence_length=sequence_length,
        chat_template_applied=forms["template"],
        chat_template_failed=forms["template failed"],
        sha256=_hash(input_ids),
    )


def _hash(input_ids: torch.Tensor) -> str:
    """sha256 of the shape and the values of `input_ids` (samples, sequence_length), int64."""
    shape = struct.pack("<2q", *input_ids.shape)
    return sha256(shape + input_ids.numpy().astype("<i8").tobytes()).hexdigest()


def load_tokenizer(folder: Path, session: Session = Session()) -> Tokenizer:
    """The tokenizer in a model folder; uses no network, and runs its code only if trusted.

    Raises:
        InputError: the folder has no tokenizer, or it cannot be read.
        RefusedError: the tokenizer is custom code that the session does not trust.
    """
    trust = session.trust_remote_code
    missing = InputError(
        f"`{folder}` contains no tokenizer",
        why=f"looked for {', '.join(VOCABULARIES)}",
        hint="copy tokenizer.json and tokenizer_config.json from the original model",
    )
    if not trust and not any(any(folder.glob(name)) for name in VOCABULARIES):
        raise missing
    from transformers import AutoTokenizer

    with hostile_tokenizer():
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                folder, local_files_only=True, trust_remote_code=trust
            )
        except Exception as error:  # the Rust library raises plain Exception for a damaged file
            reason = str(error).partition("\n")[0]
            if not trust and "trust_remote_code" in str(error):
                raise RefusedError(
                    f"the tokenizer of `{folder}` is custom code",
                    why="custom code runs only with your permission",
                    hint="--trust-remote-code, after reading the .py files there",
                ) from None
            raise InputError(
                f"cannot read the tokenizer of `{folder}`", why=reason, hint=missing.hint
            ) from error
        _require_bounded(tokenizer, folder)
        if not tokenizer("a", add_special_tokens=False)["input_ids"]:
            raise InputError(f"the tokenizer of `{folder}` returns no tokens", hint=missing.hint)
    return cast(Tokenizer, tokenizer)


@contextmanager
def _alone() -> Iterator[None]:
    """Let tokenizers in a forked child use no threads: it has none of its parent's."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = before


def _require_bounded(tokenizer: Any, folder: Path) -> None:
    """Check on a short text that a tokenizer does not multiply what it is given.

    A normalizer that doubles each letter 30 times takes all memory in one call, which nothing can
    interrupt: so the first text goes to a child with limits.

    Raises:
        InputError: it exceeds them, or makes more than MOST_TOKENS of a character.
    """
    try:
        with _alone():
            made = bounded(lambda: str(len(tokenizer(PROBE)["input_ids"])), 20)
        why = "" if int(made) <= MOST_TOKENS * len(PROBE) else f"{int(made):,} tokens come out"
    except (RuntimeError, TimeoutError) as error:
        why = str(error)
    if why:
        raise InputError(
            f"the tokenizer of `{folder}` cannot be used",
            why=f"it is given {len(PROBE)} characters: {why}",
            hint="copy tokenizer.json and tokenizer_config.json from the original model",
        )


@contextmanager
def hostile_tokenizer(where: str = "the tokenizer") -> Iterator[None]:
    """Turns errors of the Rust tokenizers library into an InputError that names `where`.

    The library raises plain Exception for bad input, and panics, which derive from BaseException.
    """
    try:
        yield
    except (QuantkitError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = str(error).partition("\n")[0]
        raise InputError(f"{where}: the tokenizer failed", why=reason) from None
