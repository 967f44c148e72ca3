"""Kullback-Leibler divergence of the model's next-token distribution from the reference's."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from quantkit.eval.metric import Figure, Figures, Metric, Scores
from quantkit.results.bootstrap import mean_interval, quantile_intervals
from quantkit.results.schema import CONFIDENCES, CONTEXTS

QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


def measure(scores: Scores) -> Figures:
    """Mean, quantiles and maximum over tokens with 95 % intervals, and means by range and domain.

    `floor_mean` is the mean KL of the reference against itself: a KL below three times it is not
    distinguishable from the reference.
    """
    kl = scores.beside.get("kl")
    if kl is None:
        return {}
    mean = scores.mean(kl)
    figures: Figures = {
        "mean": mean.value,
        "standard_error": mean.standard_error,
        "ci95": mean_interval(scores.sums(kl), scores.counts, scores.domains),
        "max": float(kl.max()),
        "by_domain": _by_domain(scores, kl),
        "by_confidence": _by_range(kl, scores.beside["confidence"], CONFIDENCES),
        "by_context": _by_range(kl, scores.context, CONTEXTS),
    }
    order = torch.argsort(kl, stable=True)
    ordered = kl.double()[order]
    figures |= {name: _quantile(ordered, level) for name, level in QUANTILES.items()}
    intervals = quantile_intervals(
        ordered.numpy(), scores.document[order].numpy(), scores.domains, tuple(QUANTILES.values())
    )
    for name, interval in zip(QUANTILES, intervals, strict=True):
        figures[f"{name}_ci95"] = interval
    total = float(ordered.sum())
    worst = float(ordered[-max(1, len(ordered) // 100) :].sum())
    figures["worst_percent_share"] = worst / total if total > 0 else None
    for name, key in (
        ("reverse_mean", "reverse_kl"),
        ("lower_bound", "lower"),
        ("upper_bound", "upper"),
    ):
        if key in scores.beside:
            figures[name] = scores.mean(scores.beside[key]).value
    if "variance" in scores.beside:
        sampling = math.sqrt(float(scores.sums(scores.beside["variance"]).sum())) / len(kl)
        figures["sampling_standard_error"] = sampling
        figures["standard_error"] = math.hypot(mean.standard_error, sampling)
    if scores.floor is not None:
        floor = scores.floor.double().flatten().sort().values
        figures |= {"floor_mean": float(floor.mean()), "floor_p99": _quantile(floor, 0.99)}
    return {"kl": figures}


def _by_domain(scores: Scores, kl: torch.Tensor) -> dict[str, float]:
    sums, found = scores.sums(kl), {}
    for domain in dict.fromkeys(scores.domains):
        members = [i for i, name in enumerate(scores.domains) if name == domain]
        found[domain] = float(sums[members].sum() / scores.counts[members].sum())
    return found


def _by_range(kl: torch.Tensor, where: torch.Tensor, edges: Sequence[float]) -> list[float | None]:
    """Mean KL of the tokens in each range (edge, next edge], None where there are none."""
    place = torch.bucketize(where.double(), torch.tensor(edges, dtype=torch.float64)) - 1
    index = place.clamp(min=0).numpy()
    counts = np.bincount(index, minlength=len(edges))
    sums = np.bincount(index, kl.double().numpy(), minlength=len(edges))
    return [
        float(total / count) if count else None for total, count in zip(sums, counts, strict=True)
    ]


def _quantile(ordered: torch.Tensor, fraction: float) -> float:
    """The interpolated quantile of sorted values (tokens,); torch.quantile allows 16 million."""
    place = fraction * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return float(low + (high - low) * (place - math.floor(place)))


METRIC = Metric(
    "kl",
    "KL(reference || model) per token",
    {f"kl.{name}": Figure(f"KL {name}", "nats", "lower") for name in ("mean", *QUANTILES, "max")},
    measure,
)
