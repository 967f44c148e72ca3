"""Hidden states to per-token scores, with a bounded slice of the logits in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from quantkit.core.progress import Progress, Report, silent
from quantkit.eval.metric import Scores
from quantkit.eval.text import EvaluationText
from quantkit.results.schema import Subject
from quantkit.stats.divergence import token_kl, token_nll

LOGIT_BYTES = 32 << 20  # fp32 logits of one model in memory at once; some four such buffers exist

TokenScores = dict[str, torch.Tensor]
Span = tuple[int, int]


@dataclass(frozen=True)
class Side:
    """One model's part in a comparison.

    `rows` returns the last block's output (positions, width) of a window in the model's dtype;
    `head` maps such rows to fp32 logits (positions, rows of the head). Only the first `vocabulary`
    logits count: the others are padding with arbitrary values.
    """

    rows: Callable[[int, slice], torch.Tensor]
    head: Callable[[torch.Tensor], torch.Tensor]
    vocabulary: int

    def log_probs(self, window: int, positions: slice) -> torch.Tensor:
        """Log probabilities (positions, vocabulary) fp32 of the next token."""
        logits = self.head(self.rows(window, positions))[:, : self.vocabulary]
        return torch.log_softmax(logits, dim=-1)

    def against(
        self, window: int, positions: slice, log_q: torch.Tensor, targets: torch.Tensor
    ) -> TokenScores:
        """Scores (positions,) fp32 of a model's `log_q` (positions, vocabulary) against this side.

        `targets` (positions,) int64 are the true next tokens.
        """
        log_p = self.log_probs(window, positions)
        top, likeliest = log_p.max(dim=-1)
        return {
            "nll": token_nll(log_p, targets),
            "kl": token_kl(log_p, log_q),
            "reverse_kl": token_kl(log_q, log_p),
            "agreement": (likeliest == log_q.argmax(dim=-1)).float(),
            "confidence": top.exp(),
        }


class ReferenceScores(Protocol):
    """A reference that scores a model's distributions, as `Side.against`."""

    def against(
        self, window: int, positions: slice, log_q: torch.Tensor, targets: torch.Tensor
    ) -> TokenScores:
        """Scores by their names in `Scores.beside`, each (positions,)."""


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
        for positions in slices(span, model.vocabulary):
            q = model.log_probs(window, positions)
            targets = text.targets(window, positions).to(q.device)
            beside = reference.against(window, positions, q, targets) if reference else {}
            for name, values in {"own": token_nll(q, targets), **beside}.items():
                found.setdefault(name, []).append(values.cpu())
        documents.append(torch.full((span[1] - span[0],), text.clusters[window]))
        contexts.append(torch.arange(span[0] + 1, span[1] + 1))
        report(Progress("scores", window + 1, len(text.spans)))
    scores = {name: torch.cat(parts) for name, parts in found.items()}
    return Scores(
        nll=scores.pop("own"),
        document=torch.cat(documents),
        context=torch.cat(contexts),
        documents=text.documents,
        beside=scores,
        floor=floor,
    )


def self_divergence(side: Side, again: Side, spans: list[Span]) -> torch.Tensor:
    """KL in nats (tokens,) fp32 of a model from itself, computed `again` with other shapes."""
    rows = [
        token_kl(side.log_probs(window, positions), again.log_probs(window, positions))
        for window, span in enumerate(spans)
        for positions in slices(span, side.vocabulary)
    ]
    return torch.cat(rows).cpu() if rows else torch.empty(0)


def slices(span: Span, vocabulary: int) -> Iterator[slice]:
    """The positions of `span` in slices of nearly equal size whose logits fit LOGIT_BYTES."""
    start, stop = span
    most = max(1, LOGIT_BYTES // (4 * vocabulary))
    count = max(1, -(-(stop - start) // most))
    size = max(1, -(-(stop - start) // count))
    for at in range(start, stop, size):
        yield slice(at, min(at + size, stop))
