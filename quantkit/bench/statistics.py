"""Medians and percentiles of repeated timings with intervals, and a stopping rule."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quantkit.results.bootstrap import repeats_interval
from quantkit.results.estimate import Floats
from quantkit.results.record import Interval

Groups = Sequence[Sequence[float]]


def median(values: Sequence[float]) -> float:
    """The median; the mean of the middle two of an even number of values."""
    return float(np.median(values))


def percentile(values: Sequence[float], fraction: float) -> float:
    """The quantile at `fraction` (0 to 1), linearly interpolated."""
    return float(np.quantile(values, fraction))


def median_interval(values: Sequence[float]) -> Interval:
    """The 95 % interval of the median, by bootstrap."""
    return repeats_interval([values], _medians)


def ratio_interval(values: Sequence[float], others: Sequence[float]) -> Interval:
    """The 95 % interval of median(values) / median(others), each resampled on its own."""
    return repeats_interval([values, others], lambda a, b: _medians(a) / _medians(b))


def percentile_interval(groups: Groups, fraction: float) -> Interval:
    """The 95 % interval of a percentile of all values, by bootstrap over groups.

    Values of a group (the gaps of one request) are correlated: resampling them one by one would
    give an interval that is too narrow.
    """
    data = [np.asarray(group, dtype=np.float64) for group in groups]

    def percentiles(drawn: Floats) -> Floats:
        pooled = (np.concatenate([data[i] for i in row]) for row in drawn.astype(int))
        return np.array([np.quantile(values, fraction) for values in pooled])

    return repeats_interval([range(len(data))], percentiles)


def rate_interval(seconds: Sequence[float], amount: float) -> Interval:
    """The 95 % interval of `amount` / mean(seconds), by bootstrap."""
    return repeats_interval([seconds], lambda drawn: amount / drawn.mean(axis=1))


def latency_figures(latencies: Mapping[str, tuple[Groups, float]]) -> dict[str, Any]:
    """`NAME_ms` and `NAME_ci95` for each name: a percentile of grouped seconds, in milliseconds.

    Both are None without values.
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


def _medians(drawn: Floats) -> Floats:
    """Medians (RESAMPLES,) of resamples (RESAMPLES, n)."""
    medians: Floats = np.median(drawn, axis=1)
    return medians
