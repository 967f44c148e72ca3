"""Medians of repeated timings with bootstrap intervals, and when there are enough of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

RESAMPLES = 2000
GROUP_RESAMPLES = 500
Groups = Sequence[Sequence[float]]


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the middle two."""
    return float(torch.tensor(values, dtype=torch.float64).quantile(0.5))


def percentile(values: Sequence[float], fraction: float) -> float:
    """Linearly interpolated; `fraction` is 0 to 1."""
    return float(torch.tensor(values, dtype=torch.float64).quantile(fraction))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, by bootstrap."""
    return _interval(_medians(values, seed=0))


def ratio_interval(values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of median(values) / median(others), each resampled on its own."""
    return _interval(_medians(values, seed=0) / _medians(others, seed=1))


def percentile_interval(groups: Groups, fraction: float) -> tuple[float, float]:
    """The 95 % interval of a percentile of all values, by bootstrap of whole groups.

    The values of a group (the gaps of one request) rise and fall together: resampled one by one
    they would give an interval that is too narrow.
    """
    return _of_groups(groups, lambda values: values.quantile(fraction))


def rate_interval(seconds: Sequence[float], amount: float) -> tuple[float, float]:
    """The 95 % interval of `amount` / mean(seconds), by bootstrap."""
    return _of_groups([[value] for value in seconds], lambda values: amount / values.mean())


def _of_groups(
    groups: Groups, statistic: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[float, float]:
    data = [torch.tensor(group, dtype=torch.float64) for group in groups]
    rng = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(data), (GROUP_RESAMPLES, len(data)), generator=rng).tolist()
    return _interval(torch.stack([statistic(torch.cat([data[i] for i in row])) for row in drawn]))


def latency_figures(latencies: Mapping[str, tuple[Groups, float]]) -> dict[str, Any]:
    """`NAME_ms` and `NAME_ci95` for each name: a percentile of grouped seconds, in milliseconds.

    Both are None where there are no seconds.
    """
    found: dict[str, Any] = {}
    for name, (groups, fraction) in latencies.items():
        kept = [[1000 * value for value in group] for group in groups if group]
        pooled = [value for group in kept for value in group]
        found[f"{name}_ms"] = percentile(pooled, fraction) if kept else None
        found[f"{name}_ci95"] = percentile_interval(kept, fraction) if kept else None
    return found


def is_settled(values: Sequence[float], within: float = 0.02) -> bool:
    """Whether the interval of the median is narrower than `within` of the median."""
    if len(values) < 5:
        return False
    low, high = median_interval(values)
    return high - low < within * median(values)


def _medians(values: Sequence[float], seed: int) -> torch.Tensor:
    """Medians (RESAMPLES,) of as many resamples."""
    data = torch.tensor(values, dtype=torch.float64)
    rng = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(data), (RESAMPLES, len(data)), generator=rng)
    return data[drawn].quantile(0.5, dim=1)


def _interval(estimates: torch.Tensor) -> tuple[float, float]:
    ends = torch.tensor([0.025, 0.975], dtype=torch.float64)
    low, high = estimates.quantile(ends).tolist()
    return low, high
