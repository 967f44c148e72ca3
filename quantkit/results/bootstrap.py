"""Bootstrap intervals of figures without a simple standard error, over documents or timings.

Documents are resampled within their domains, and their intervals widened for small numbers; repeats
of a timing are resampled plainly (Efron and Tibshirani, An Introduction to the Bootstrap, 1993,
13.3). The seed is fixed, so that equal figures have equal intervals.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from quantkit.results.estimate import CONFIDENCE, Floats, strata, t_quantile
from quantkit.results.record import Interval

RESAMPLES = 2000
SEED = 0
MOST_BINS = 4096
PARTS = 16  # resamples are processed in so many parts: their bins take 8 MB instead of 130


@lru_cache(maxsize=2)  # every metric of a result uses the same weights
def resample(domains: tuple[str, ...]) -> tuple[Floats, int]:
    """Weights (RESAMPLES, documents) fp64 of the documents in each resample; degrees of freedom.

    Of a domain with k documents, k - 1 are drawn with replacement and weighted by k / (k - 1): the
    variance of the resamples then is that of the sample; with k draws it would be too small by the
    factor (k - 1) / k, which matters with few documents (Rao and Wu, JASA 83, 1988).
    """
    generator = np.random.default_rng(SEED)
    weights = np.zeros((RESAMPLES, len(domains)))
    free = 0
    for members in strata(domains):
        k = len(members)
        if k == 1:
            weights[:, members] = 1
            continue
        drawn = generator.multinomial(k - 1, np.full(k, 1 / k), size=RESAMPLES)
        weights[:, members] = drawn * (k / (k - 1))
        free += k - 1
    return weights, free


def percentile_interval(values: Floats, degrees_of_freedom: int) -> Interval:
    """The 95 % interval of resampled `values` (RESAMPLES,), widened for few degrees of freedom.

    It uses the percentiles at which the normal distribution has Student's t quantile (Hesterberg,
    What Teachers Should Know About the Bootstrap, 2015, "expanded percentile interval").
    """
    if degrees_of_freedom < 1:
        return math.nan, math.nan
    tail = NormalDist().cdf(-t_quantile(0.5 + CONFIDENCE / 2, degrees_of_freedom))
    return _between(values, tail)


def repeats_interval(
    samples: Sequence[Sequence[float]], statistic: Callable[..., Floats]
) -> Interval:
    """The 95 % percentile interval of a statistic; each sample is resampled independently.

    `statistic` maps one fp64 array (RESAMPLES, n) per sample of n values to (RESAMPLES,).
    """
    generator = np.random.default_rng(SEED)
    drawn = []
    for sample in samples:
        values = np.asarray(sample, dtype=np.float64)
        drawn.append(values[generator.integers(len(values), size=(RESAMPLES, len(values)))])
    return _between(statistic(*drawn), (1 - CONFIDENCE) / 2)


def _between(values: Floats, tail: float) -> Interval:
    """The quantiles of resampled `values` that leave out `tail` on either side."""
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def mean_interval(sums: Floats, counts: Floats, domains: Sequence[str]) -> Interval:
    """The interval of sum(sums) / sum(counts); both are (documents,) fp64."""
    weights, free = resample(tuple(domains))
    return percentile_interval((weights @ sums) / (weights @ counts), free)


def quantile_intervals(
    ordered: Floats, documents: np.ndarray, domains: Sequence[str], levels: Sequence[float]
) -> list[Interval]:
    """Intervals of the quantiles at `levels` of token values.

    `ordered` (tokens,) fp64 are the sorted values, `documents` (tokens,) the index of the document
    of each. They are put into at most MOST_BINS bins, half of them in the upper 2 %, so that a
    resample costs one row of a matrix product instead of a sort.
    """
    weights, free = resample(tuple(domains))
    ends = _bins(len(ordered))
    counts = np.zeros((len(domains), len(ends)))
    bins = np.searchsorted(ends, np.arange(len(ordered)), side="left")
    np.add.at(counts, (documents, bins), 1)
    drawn: list[list[Floats]] = [[] for _ in levels]
    for part in np.array_split(weights, PARTS):
        below = np.cumsum(part @ counts, axis=1)
        for level, values in zip(levels, drawn, strict=True):
            at = (below < level * below[:, -1:]).sum(axis=1).clip(max=len(ends) - 1)
            values.append(ordered[ends[at]])
    return [percentile_interval(np.concatenate(values), free) for values in drawn]


def _bins(count: int) -> np.ndarray:
    """The last index (bins,) of each bin."""
    if count <= MOST_BINS:
        return np.arange(count)
    body = np.linspace(0, 0.98 * (count - 1), MOST_BINS // 2, endpoint=False)
    tail = np.linspace(0.98 * (count - 1), count - 1, MOST_BINS // 2)
    return np.unique(np.concatenate([body, tail]).round().astype(np.int64))
