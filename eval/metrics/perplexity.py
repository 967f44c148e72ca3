"""Perplexity: the exponential of the mean negative log likelihood of a token."""

import math

import torch

from quantkit.eval.metric import Figure, Figures, Metric, Scores
from quantkit.results.bootstrap import mean_interval


def perplexity(scores: Scores, nll: torch.Tensor) -> dict[str, float]:
    """exp(mean) of `nll` (tokens,), its error by the delta method; per byte and word if counted."""
    mean = scores.mean(nll)
    value = _exp(mean.value)
    found = {"value": value, "standard_error": value * mean.standard_error}
    low, high = mean.interval
    found["ci95"] = (_exp(low), _exp(high))  # type: ignore[assignment]  # the one pair among numbers
    total = float(scores.sums(nll).sum())
    for unit in ("words", "bytes"):
        counts = [getattr(document, unit) for document in scores.documents]
        if all(counts):
            found[unit.removesuffix("s")] = _exp(total / sum(counts))
    if "byte" in found:
        found["bits_per_byte"] = math.log2(found["byte"]) if found["byte"] > 0 else math.nan
    return found


def measure(scores: Scores) -> Figures:
    """Perplexity of the model; with a reference also its perplexity and the log of their ratio.

    The ratio's error is that of the paired difference on the same tokens, which is many times
    smaller than the errors of both perplexities.
    """
    figures: Figures = dict(perplexity(scores, scores.nll))
    reference_nll = scores.beside.get("nll")
    if reference_nll is None:
        return {"perplexity": figures}
    difference = scores.nll - reference_nll
    ratio = scores.mean(difference)
    figures |= {
        "log_ratio": ratio.value,
        "log_ratio_standard_error": ratio.standard_error,
        "log_ratio_ci95": mean_interval(scores.sums(difference), scores.counts, scores.domains),
    }
    return {"perplexity": figures, "reference_perplexity": perplexity(scores, reference_nll)}


def _exp(nats: float) -> float:
    return math.inf if nats > 700 else math.exp(nats)


METRIC = Metric(
    "perplexity",
    "exp of the mean negative log likelihood",
    {
        "perplexity.value": Figure("Perplexity", "number", "lower"),
        "perplexity.log_ratio": Figure("Log of the perplexity ratio", "fraction", "lower"),
    },
    measure,
)
