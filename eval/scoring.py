"""Hidden states to per-token scores, with a tile of the logits in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from quantkit.core.progress import Progress, Report, silent
from quantkit.eval.metric import Scores
from quantkit.eval.text import EvaluationText
from quantkit.grid.tiles import LOGIT_BYTES, POSITIONS, WIDEST, tiles
from quantkit.results.schema import Subject
from quantkit.stats.running import RunningDivergence, RunningSoftmax

TokenScores = dict[str, torch.Tensor]
Span = tuple[int, int]


class Head(Protocol):
    """What follows a model's blocks, as `quantkit.model.head.Head`."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows of the last block's output (rows, width) -> fp32 logits (rows, vocabulary)."""

    def is_product(self, rows: torch.Tensor) -> bool:
        """Whether `tiles` works; found with `rows` (rows, width) at the first call."""

    def tiles(self, rows: torch.Tensor, vocabulary: int, width: int) -> Iterator[torch.Tensor]:
        """The first `vocabulary` logits, `width` columns at a time; the caller owns each."""


@dataclass(frozen=True)
class Side:
    """One model's part in a comparison.

    `rows` returns the last block's output (positions, width) of a window in the model's dtype.
    Only the first `vocabulary` logits count: the others are padding with arbitrary values.
    """

    rows: Callable[[int, slice], torch.Tensor]
    head: Head
    vocabulary: int

    def log_probs(self, window: int, positions: slice) -> torch.Tensor:
        """Log probabilities (positions, vocabulary) fp32 of the next token."""
        logits = self.head(self.rows(window, positions))[:, : self.vocabulary]
        return torch.log_softmax(logits, dim=-1)

    def most(self, window: int, span: Span) -> int:
        """How many positions' logits are computed together at most."""
        first = self.rows(window, slice(span[0], span[0] + 1))
        return POSITIONS if self.head.is_product(first) else most_whole(self.vocabulary)

    def tiles(self, rows: torch.Tensor) -> Iterator[torch.Tensor]:
        """Logits fp32 (rows, columns) of `rows` (rows, width), cut alike for all models."""
        width = min(tiles(rows.device.type).logits // len(rows), WIDEST)
        if self.head.is_product(rows):
            yield from self.head.tiles(rows, self.vocabulary, width)
        else:
            yield from torch.split(self.head(rows)[:, : self.vocabulary], width, dim=1)

    def likelihood(self, window: int, span: Span, targets: torch.Tensor) -> TokenScores:
        """Only `own`: nll (positions,) of `targets` (positions,) int64, the true next tokens."""
        found = []
        for positions in slices(span, self.most(window, span)):
            rows = self.rows(window, positions)
            softmax = RunningSoftmax(_part(targets, positions, span).to(rows.device))
            for logits in self.tiles(rows):
                softmax.add(logits, out=logits)
            found.append(softmax.nll())
        return {"own": torch.cat(found)}

    def against(self, model: "Side", window: int, span: Span, targets: torch.Tensor) -> TokenScores:
        """Scores (positions,) fp32 of a `model` of the same vocabulary against this side.

        `targets` (positions,) int64 are the true next tokens.
        """
        found: list[TokenScores] = []
        for positions in slices(span, min(side.most(window, span) for side in (self, model))):
            p, q = self.rows(window, positions), model.rows(window, positions)
            both = RunningDivergence(_part(targets, positions, span).to(p.device))
            for z_p, z_q in zip(self.tiles(p), model.tiles(q), strict=True):
                both.add(z_p, z_q)
            found.append(
                {
                    "own": both.q.nll(),
                    "nll": both.p.nll(),
                    "kl": both.kl(),
                    "reverse_kl": both.reverse_kl(),
                    "agreement": (both.p.likeliest == both.q.likeliest).float(),
                    "confidence": both.p.confidence(),
                }
            )
        return {name: torch.cat([scores[name] for scores in found]) for name in found[0]}


class ReferenceScores(Protocol):
    """A reference that scores a model's distributions, as `Side.against`."""

    def against(self, model: Side, window: int, span: Span, targets: torch.Tensor) -> TokenScores:
        """`own` nll of the model, and scores by their names in `Scores.beside`, (positions,)."""


@dataclass(frozen=True)
class Reference:
    """The original's part of a comparison, computed once for any number of artifacts."""

    scores: ReferenceScores
    subject: Subject
    dtype: str
    vocabulary_sha256: str
    tokens_sha256: str
    floor: torch.Tensor | None


def score_tokens(
    text: EvaluationText,
    model: Side,
    reference: ReferenceScores | None = None,
    floor: torch.Tensor | None = None,
    report: Report = silent,
) -> Scores:
    """Scores of every token that the text's protocol scores.

    A window's scores depend neither on its neighbours nor on its place among them.
    """
    found: dict[str, list[torch.Tensor]] = {}
    documents, contexts = [], []
    for window, span in enumerate(text.spans):
        if span[0] < span[1]:
            targets = text.targets(window, slice(*span))
            scores = (
                reference.against(model, window, span, targets)
                if reference
                else model.likelihood(window, span, targets)
            )
            for name, values in scores.items():
                found.setdefault(name, []).append(values.cpu())
        documents.append(torch.full((span[1] - span[0],), text.clusters[window]))
        contexts.append(torch.arange(span[0] + 1, span[1] + 1))
        report(Progress("scores", window + 1, len(text.spans)))
    beside = {name: torch.cat(parts) for name, parts in found.items()}
    return Scores(
        nll=beside.pop("own"),
        document=torch.cat(documents),
        context=torch.cat(contexts),
        documents=text.documents,
        beside=beside,
        floor=floor,
    )


def self_divergence(side: Side, again: Side, spans: list[Span]) -> torch.Tensor:
    """KL in nats (tokens,) fp32 of a model from itself, computed `again` with other shapes."""
    found = []
    for window, (start, stop) in enumerate(spans):
        if start < stop:
            anything = torch.zeros(stop - start, dtype=torch.int64)
            found.append(side.against(again, window, (start, stop), anything)["kl"].cpu())
    return torch.cat(found) if found else torch.empty(0)


def most_whole(vocabulary: int) -> int:
    """The positions of which all logits fit LOGIT_BYTES."""
    return max(1, LOGIT_BYTES // (4 * vocabulary))


def slices(span: Span, most: int) -> Iterator[slice]:
    """The positions of `span` in slices of nearly equal size, `most` at most."""
    start, stop = span
    count = max(1, -(-(stop - start) // most))
    size = max(1, -(-(stop - start) // count))
    for at in range(start, stop, size):
        yield slice(at, min(at + size, stop))


def _part(targets: torch.Tensor, positions: slice, span: Span) -> torch.Tensor:
    return targets[positions.start - span[0] : positions.stop - span[0]]
