"""Evaluation text: token windows and the protocol that made them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class TextChoice:
    """Which text is scored, how it is cut, and how much of it.

    `text` None: the bundled text; `sequence_length` and `windows` None: the protocol's own.
    """

    text: str | None = None
    protocol: str = "qk@1"
    sequence_length: int | None = None
    windows: int | None = None


@dataclass(frozen=True)
class ScoredDocument:
    """A scored document; `words` and `bytes` of its scored text if they were counted."""

    id: str
    domain: str
    words: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class EvaluationText:
    """Windows of text and the protocol that made them.

    `tokens` is (windows, length) int64; in window w, positions `spans[w]` each predict the token
    that follows. Shorter windows are filled up behind their last scored token, which nothing before
    it can see. `clusters` gives the index in `documents` of each window. `vocabulary` is the number
    of token ids that the tokenizer knows: the model may have more rows, which mean nothing.
    """

    tokens: torch.Tensor
    spans: tuple[tuple[int, int], ...]
    clusters: tuple[int, ...]
    documents: tuple[ScoredDocument, ...]
    vocabulary: int
    vocabulary_sha256: str
    protocol: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def inputs(self) -> torch.Tensor:
        """The model's input ids (windows, length - 1) int64: the last token is only predicted."""
        return self.tokens[:, :-1]

    def targets(self, window: int, positions: slice) -> torch.Tensor:
        """The token ids (positions,) int64 that `positions` predict."""
        return self.tokens[window, positions.start + 1 : positions.stop + 1]
