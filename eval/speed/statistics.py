"""Medians of repeated timings with bootstrap intervals, and when there are enough of them."""

from collections.abc import Sequence

import torch

RESAMPLES = 2000


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
