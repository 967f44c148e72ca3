"""Perplexity: the exponential of the mean negative log likelihood of a token."""

import math

import torch

from quantkit.eval.estimate import clustered_mean
from quantkit.eval.metric import Figure, Metric, Scores


def token_nll(log_probs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Nats (rows,) that `targets` (rows,) cost under `log_probs` (rows, vocab)."""
    return -log_probs.gather(1, targets[:, None])[:, 0]


def perplexity(nll: torch.Tensor, clusters: tuple[int, ...]) -> dict[str, float]:
    """exp(mean nll) and its standard error by the delta method, from nll (windows, positions)."""
    mean = clustered_mean(nll, clusters)
    value = math.inf if mean.value > 700 else math.exp(mean.value)
    return {"value": value, "standard_error": value * mean.standard_error}


def measure(scores: Scores) -> dict[str, Figure]:
    """Perplexity of the model, and beside a reference that one's and the logarithm of their ratio.

    The ratio's error is that of the paired difference on the same tokens, many times smaller than
    the two perplexities' own errors suggest: builds are compared by it.
    """
    figures = perplexity(scores.nll, scores.clusters)
    if scores.reference_nll is None:
        return {"perplexity": figures}
    ratio = clustered_mean(scores.nll - scores.reference_nll, scores.clusters)
    figures |= {"log_ratio": ratio.value, "log_ratio_standard_error": ratio.standard_error}
    reference = perplexity(scores.reference_nll, scores.clusters)
    return {"perplexity": figures, "reference_perplexity": reference}


METRIC = Metric("perplexity", "exp of the mean negative log likelihood", "1", "lower", measure)
