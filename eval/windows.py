"""A text as token windows, cut as a protocol says."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from quantkit.calibration.chat import Tokenizer
from quantkit.calibration.text import read_documents
from quantkit.calibration.tokens import hostile_tokenizer
from quantkit.checkpoint.files import sha256
from quantkit.core.errors import InputError
from quantkit.eval.protocol import Corpus, Cut, Piece, begins_with, find_protocol
from quantkit.eval.text import EvaluationText, ScoredDocument, TextChoice

SMOKE = Path(__file__).with_name("smoke.jsonl")
SHIPPED = (None, "default", "smoke")

ONE_BOS = (
    "only the first window starts with BOS, as in published figures; a model that needs BOS "
    "scores worse; the protocol qk@1 adds BOS to every window"
)


def read_text(
    choice: TextChoice, tokenizer: Tokenizer, context: int = sys.maxsize
) -> EvaluationText:
    """The windows of a text under a protocol, none longer than the model's `context`.

    Raises:
        InputError: no such text or protocol, or the text does not fill one window.
    """
    protocol = find_protocol(choice.protocol)
    length = min(choice.sequence_length or protocol.length or context, context)
    most = choice.windows or protocol.windows or sys.maxsize
    if length < 2 or most < 1 or (choice.windows is not None and choice.windows < 1):
        raise InputError(
            f"{choice.windows} windows of {length} tokens contain no scored token",
            hint="--sequence-length 512 --windows 16",
        )
    name = str(SMOKE) if choice.text in SHIPPED else str(choice.text)
    path = Path(name)
    plain = path.suffix == ".txt" and path.is_file()
    with hostile_tokenizer(path.name):
        cut = protocol.cut(Corpus(read_documents(name), plain), tokenizer, length, most)
    if not cut.pieces:
        raise InputError(
            f"`{name}` does not fill one window of {length:,} tokens",
            hint="a smaller --sequence-length, or more text",
        )
    tokens = _rectangle(cut.pieces)
    bos = _bos(tokens, tokenizer)
    vocabulary = _vocabulary(tokenizer)
    stated = {
        "name": protocol.stated(length),
        "text": "smoke" if choice.text in SHIPPED else path.name if path.exists() else name,
        "text_sha256": sha256(path) if path.is_file() else None,
        "tokens_sha256": _token_hash(tokens),
        "documents": len(cut.pieces),
        "windows": len(tokens),
        "sequence_length": length,
        "bos": bos,
    }
    return EvaluationText(
        tokens,
        spans=tuple((w.start, w.stop) for piece in cut.pieces for w in piece.windows),
        clusters=tuple(i for i, piece in enumerate(cut.pieces) for _ in piece.windows),
        documents=_documents(cut, tokenizer),
        vocabulary=max(vocabulary.values()) + 1,
        vocabulary_sha256=vocabulary_hash(tokenizer),
        protocol=stated,
        notes=(*cut.notes, *([ONE_BOS] if bos == "first window" else [])),
    )


def text_of_windows(
    tokens: torch.Tensor, sources: Sequence[str], tokenizer: Tokenizer, name: str
) -> EvaluationText:
    """Windows `tokens` (windows, length) int64 as they are, with every position scored.

    `sources` names the document of each window: windows of one document are not independent.
    """
    documents = list(dict.fromkeys(sources))
    vocabulary = _vocabulary(tokenizer)
    return EvaluationText(
        tokens,
        spans=((0, tokens.shape[1] - 1),) * len(tokens),
        clusters=tuple(documents.index(source) for source in sources),
        documents=tuple(ScoredDocument(source, name) for source in documents),
        vocabulary=max(vocabulary.values()) + 1,
        vocabulary_sha256=vocabulary_hash(tokenizer),
        protocol={
            "name": name,
            "text": name,
            "tokens_sha256": _token_hash(tokens),
            "documents": len(documents),
            "windows": len(tokens),
            "sequence_length": tokens.shape[1] - 1,
            "bos": _bos(tokens, tokenizer),
        },
    )


def _token_hash(tokens: torch.Tensor) -> str:
    return hashlib.sha256(tokens.numpy().astype("<i8").tobytes()).hexdigest()


def vocabulary_hash(tokenizer: Any) -> str:
    """SHA-256 of the tokens in the order of their ids: what the columns of the logits mean."""
    digest = hashlib.sha256()
    for token, index in sorted(_vocabulary(tokenizer).items(), key=lambda item: item[1]):
        digest.update(f"{index}\0{token}\0".encode(errors="surrogatepass"))
    return digest.hexdigest()


def _vocabulary(tokenizer: Any) -> dict[str, int]:
    return dict(tokenizer.get_vocab())


def _rectangle(pieces: list[Piece]) -> torch.Tensor:
    windows = [window.ids for piece in pieces for window in piece.windows]
    longest = max(map(len, windows))
    return torch.tensor([ids + ids[-1:] * (longest - len(ids)) for ids in windows])


def _documents(cut: Cut, tokenizer: Tokenizer) -> tuple[ScoredDocument, ...]:
    """The pieces, numbered within their domain, with the bytes of what is scored of them."""
    seen: dict[str, int] = {}
    found = []
    for piece in cut.pieces:
        number = seen[piece.domain] = seen.get(piece.domain, 0) + 1
        size = piece.bytes
        if size is None:
            texts = (tokenizer.decode(w.ids[w.start + 1 : w.stop + 1]) for w in piece.windows)
            size = sum(len(text.encode(errors="replace")) for text in texts)
        found.append(ScoredDocument(f"{piece.domain}-{number}", piece.domain, piece.words, size))
    return tuple(found)


def _bos(tokens: torch.Tensor, tokenizer: Tokenizer) -> str:
    """Which windows start with BOS."""
    firsts = tokens[:, 0].tolist()
    bos = begins_with(tokenizer)
    if firsts[:1] != bos:
        return "none"
    return "every window" if set(firsts) == set(bos) else "first window"
