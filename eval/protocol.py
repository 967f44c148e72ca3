"""Named protocols: how a text is cut into windows, and which positions are scored.

Figures of two protocols are not comparable, so each name has one fixed rule. A window length other
than the default is appended: `qk@1/256`.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from quantkit.calibration import chat
from quantkit.calibration.chat import Tokenizer
from quantkit.calibration.record import Document
from quantkit.core.errors import InputError
from quantkit.core.registry import nearest
from quantkit.eval import wikitext

DEFAULT = "qk@1"
WHOLE = 4 << 20
"""Characters of a text that is tokenized at once."""
SPARE = 8  # times as many windows as asked for are cut before domains are drawn from
JOINED = "documents shorter than a window were joined with others of their domain"
NO_BORDERS = "a plain text contains no document borders: errors are over windows"


@dataclass(frozen=True)
class Window:
    """Token ids, and the positions [start, stop) each of which predicts the token after it."""

    ids: list[int]
    start: int
    stop: int


@dataclass(frozen=True)
class Piece:
    """A unit of the sample: a document, or joined documents, and its windows.

    `words` and `bytes` count the scored text, if the protocol needs them.
    """

    domain: str
    windows: tuple[Window, ...]
    words: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Cut:
    """The pieces of a text, and notes for the result."""

    pieces: list[Piece]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """Documents; or the consecutive parts of one text, where `plain`."""

    documents: Iterable[Document]
    plain: bool = False


Cutter = Callable[[Corpus, Tokenizer, int, int], Cut]
"""(corpus, tokenizer, length, most pieces) -> pieces; the model reads `length` tokens at once."""


@dataclass(frozen=True)
class NamedProtocol:
    """A protocol; `length` None: the model's context; `windows` None: all windows."""

    name: str
    length: int | None
    windows: int | None
    cut: Cutter

    def stated(self, length: int) -> str:
        """The name of the protocol with windows of `length`."""
        return self.name if self.length in (None, length) else f"{self.name}/{length}"


def find_protocol(name: str) -> NamedProtocol:
    """The protocol of that name.

    Raises:
        InputError: there is none.
    """
    if name not in PROTOCOLS:
        raise InputError(
            f"unknown protocol `{name}`",
            why=f"known: {', '.join(PROTOCOLS)}",
            hint=f"--protocol {nearest(name, tuple(PROTOCOLS))}",
        )
    return PROTOCOLS[name]


def begins_with(tokenizer: Any) -> list[int]:
    """BOS as the start of a window, or nothing where the tokenizer has none."""
    bos = getattr(tokenizer, "bos_token_id", None)
    return [] if bos is None else [int(bos)]


@dataclass
class _Domain:
    """Windows of one domain, and text too short for one."""

    pieces: list[Piece] = field(default_factory=list)
    rest: list[int] = field(default_factory=list)


def _one_a_document(corpus: Corpus, tokenizer: Tokenizer, length: int, most: int) -> Cut:
    """One window of each document, in turn from each domain.

    Errors depend on the number of documents. Documents shorter than a window are joined with others
    of their domain, separated by EOS; in a plain text every window counts as a document.
    """
    start = begins_with(tokenizer)
    room = length + 1 - len(start)
    render = chat.renderer(tokenizer)
    domains: dict[str, _Domain] = {}
    joined = False
    for document in corpus.documents:
        name = document.domain or "text"
        domain = domains.setdefault(name, _Domain())
        joined = joined or bool(domain.rest)
        domain.rest += _ids(document, tokenizer, render, start)
        at = 0
        while len(domain.rest) - at >= room and not (corpus.plain and len(domain.pieces) >= most):
            window = Window([*start, *domain.rest[at : at + room]], 0, length)
            domain.pieces.append(Piece(name, (window,)))
            at = at + room if corpus.plain else len(domain.rest)
        domain.rest = domain.rest[at:]
        if domain.rest and not corpus.plain and tokenizer.eos_token_id is not None:
            domain.rest.append(tokenizer.eos_token_id)
        found = sum(len(each.pieces) for each in domains.values())
        if found >= (most * SPARE if document.domain else most):
            break
    turns = itertools.zip_longest(*(d.pieces for d in domains.values()))
    drawn = [piece for turn in turns for piece in turn if piece is not None]
    notes = (NO_BORDERS,) if corpus.plain else (JOINED,) if joined else ()
    return Cut(drawn[:most], notes)


def _joined(corpus: Corpus, tokenizer: Tokenizer, length: int, most: int) -> Cut:
    """The whole text tokenized once and cut into windows, as in GPTQ's code (arXiv 2210.17323).

    At most the first window starts with BOS.
    """
    ids = _whole(corpus, tokenizer, "\n\n")
    pieces = [
        Piece("text", (Window(ids[at : at + length], 0, length - 1),))
        for at in range(0, len(ids) - length + 1, length)
    ]
    return Cut(pieces[:most])


def _halves(corpus: Corpus, tokenizer: Tokenizer, length: int, most: int) -> Cut:
    """As `_joined`, but only the second half of a window is scored.

    Where the tokenizer adds BOS, it is written over the first token of each window (llama.cpp
    tools/perplexity, 050fc7f).
    """
    ids = _whole(corpus, tokenizer, "")
    bos = begins_with(tokenizer)
    adds = bool(bos) and ids[:1] == bos
    pieces = []
    for at in range(0, len(ids) - length + 1, length):
        window = [*bos, *ids[at + 1 : at + length]] if adds else ids[at : at + length]
        pieces.append(Piece("text", (Window(window, length // 2, length - 1),)))
    return Cut(pieces[:most])


def _pages(corpus: Corpus, tokenizer: Tokenizer, length: int, most: int) -> Cut:
    """Every token of each page in rolling windows (lm-evaluation-harness, task `wikitext`)."""
    documents = corpus.documents
    if corpus.plain:
        documents = [Document("".join(d.text or "" for d in documents), None, "the text")]
    prefix = next(iter(begins_with(tokenizer)), tokenizer.eos_token_id)
    if prefix is None:
        raise InputError(
            "the tokenizer has neither BOS nor EOS",
            why="the protocol predicts the first token of a page from one of them",
            hint=f"--protocol {DEFAULT}",
        )
    pieces = []
    for document in itertools.islice((d for d in documents if d.text), most):
        page = document.text or ""
        ids = _encode(tokenizer, wikitext.detokenize(page))
        windows = tuple(
            Window(window, len(window) - 1 - scored, len(window) - 1)
            for window, scored in wikitext.rolling_windows(ids, prefix, length)
        )
        if windows:
            size = len(page.encode())
            pieces.append(Piece(document.domain or "text", windows, wikitext.words(page), size))
    return Cut(pieces)


def _ids(
    document: Document, tokenizer: Tokenizer, render: chat.Render | None, start: Sequence[int]
) -> list[int]:
    """Token ids without BOS: a template writes it, a text may not."""
    rendered = render(document.messages) if render and document.messages else None
    text = rendered or document.text or chat.plain(document.messages or ())
    ids = _encode(tokenizer, text if text.strip() else "")
    if start and ids[:1] == list(start):
        if rendered is None:
            raise InputError(
                f"{document.source} starts with the tokenizer's BOS",
                why="the protocol adds BOS itself, and a second one changes every score",
                hint="the text without BOS",
            )
        del ids[0]
    return ids


def _whole(corpus: Corpus, tokenizer: Tokenizer, between: str) -> list[int]:
    """The token ids of all documents as one text, with the tokenizer's own special tokens."""
    texts = (d.text if d.messages is None else chat.plain(d.messages) for d in corpus.documents)
    text = ("" if corpus.plain else between).join(text or "" for text in texts)
    if len(text) > WHOLE:
        raise InputError(
            f"the text has {len(text):,} characters, and the protocol reads it as a whole",
            why=f"a tokenizer takes 200 bytes of memory for each; the limit is {WHOLE:,}",
            hint=f"a shorter extract, or --protocol {DEFAULT}",
        )
    # Quiet: the text is longer than the model's context, its windows are not.
    return list(tokenizer(text, verbose=False)["input_ids"])


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


PROTOCOLS = {
    protocol.name: protocol
    for protocol in (
        NamedProtocol("qk@1", 512, 512, _one_a_document),
        NamedProtocol("long@1", 8192, 16, _one_a_document),
        NamedProtocol("wikitext2-2048", 2048, None, _joined),
        NamedProtocol("wikitext2-llamacpp", 512, None, _halves),
        NamedProtocol("wikitext-lmeval", None, None, _pages),
    )
}
