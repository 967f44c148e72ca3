"""Evaluation text: token windows, and everything needed to say on what a model was scored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class TextChoice:
    """Which text is scored, how it is cut, and how much of it.

    `text` None is the one that ships; `sequence_length` and `windows` None are the protocol's own.
    """

    text: str | None = None
    protocol: str = "qk@1"
    sequence_length: int | None = None
    windows: int | None = None


@dataclass(frozen=True)
class ScoredDocument:
    """What was drawn at random; `words` and `bytes` of the scored text where they were counted."""

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
        """What the model reads (windows, length - 1): the last token is only predicted."""
        return self.tokens[:, :-1]

    def targets(self, window: int, positions: slice) -> torch.Tensor:
        """The tokens that `positions` predict."""
        return self.tokens[window, positions.start + 1 : positions.stop + 1]
