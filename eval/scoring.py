"""Hidden states to per-token scores, with a bounded slice of the logits in memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from quantkit.core.progress import Progress, Report, silent
from quantkit.eval.metric import Scores
from quantkit.eval.metrics.kl import token_kl
from quantkit.eval.metrics.perplexity import token_nll

LOGIT_BYTES = 32 << 20  # fp32 logits of one model in memory at once; some four such buffers exist


@dataclass(frozen=True)
class Side:
    """One model's part in a comparison.

    `hidden` (windows, length, width) is the last block's output in the model's dtype; `head` maps
    rows of it to fp32 logits (rows, vocab).
    """

    hidden: torch.Tensor
    head: Callable[[torch.Tensor], torch.Tensor]
    vocab: int

    def log_probs(self, window: int, positions: slice) -> torch.Tensor:
        """Log probabilities (positions, vocab) fp32 of the next token."""
        return torch.log_softmax(self.head(self.hidden[window, positions]), dim=-1)

    def slices(self, length: int) -> Iterator[slice]:
        """Positions 0 to `length` in slices of nearly equal size whose logits fit LOGIT_BYTES."""
        most = max(1, LOGIT_BYTES // (4 * self.vocab))
        count = -(-length // most)
        size = -(-length // count)
        for start in range(0, length, size):
            yield slice(start, min(start + size, length))


def score_tokens(
    tokens: torch.Tensor,
    clusters: Sequence[int],
    model: Side,
    reference: Side | None = None,
    report: Report = silent,
) -> Scores:
    """Scores of every token but each window's first, from `tokens` (windows, length) int64.

    A window's scores depend neither on its neighbours nor on its place among them.
    """
    windows, length = tokens.shape
    scored = []
    for window in range(windows):
        slices = [
            _score(window, positions, tokens[window], model, reference)
            for positions in model.slices(length - 1)
        ]
        scored.append(torch.cat(slices, dim=1).cpu())
        report(Progress("scores", window + 1, windows))
    nll, *beside_reference = torch.stack(scored, dim=1)
    return Scores(nll, tuple(clusters), *beside_reference)


def self_divergence(side: Side, again: Side) -> torch.Tensor:
    """KL in nats of one model from itself at the positions (windows, length) computed `again`."""
    windows, length = again.hidden.shape[:2]
    rows = []
    for window in range(windows):
        pairs = (
            (side.log_probs(window, positions), again.log_probs(window, positions))
            for positions in side.slices(length)
        )
        rows.append(torch.cat([token_kl(p, q) for p, q in pairs]).cpu())
    return torch.stack(rows)


def _score(
    window: int, positions: slice, tokens: torch.Tensor, model: Side, reference: Side | None
) -> torch.Tensor:
    """NLL (1, positions), or NLL, the reference's NLL, KL and agreement (4, positions)."""
    targets = tokens[positions.start + 1 : positions.stop + 1].to(model.hidden.device)
    q = model.log_probs(window, positions)
    if reference is None:
        return token_nll(q, targets)[None]
    p = reference.log_probs(window, positions)
    agreement = (p.argmax(dim=-1) == q.argmax(dim=-1)).float()
    return torch.stack([token_nll(q, targets), token_nll(p, targets), token_kl(p, q), agreement])
