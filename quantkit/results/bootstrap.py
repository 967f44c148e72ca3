"""Intervals by the bootstrap, for what has no simple error: of documents, and of repeated timings.

Documents are drawn within their domains and their intervals widened for small numbers; repeats of a
timing are drawn as they are (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, 13.3).
One generator with one seed draws both, so that the same figures have the same intervals.
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
PARTS = 16  # of the resamples, so that their bins take 8 MB and not 130


@lru_cache(maxsize=2)  # every metric of a result asks for the same ones
def resample(domains: tuple[str, ...]) -> tuple[Floats, int]:
    """Weights (RESAMPLES, documents) of the documents in each resample, and degrees of freedom.

    Of a domain with k documents, k - 1 are drawn with replacement and weighted by k / (k - 1): the
    spread of the resamples then is that of the sample, where k draws fall short of it by
    (k - 1) / k, a lot with few documents (Rao and Wu, JASA 83, 1988).
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
    """The 95 % interval of resampled `values`, widened as Student's t is wider than the normal.

    The percentiles taken are those where the normal has t's quantile (Hesterberg, What Teachers
    Should Know About the Bootstrap, 2015, "expanded percentile interval").
    """
    if degrees_of_freedom < 1:
        return math.nan, math.nan
    tail = NormalDist().cdf(-t_quantile(0.5 + CONFIDENCE / 2, degrees_of_freedom))
    return _between(values, tail)


def repeats_interval(
    samples: Sequence[Sequence[float]], statistic: Callable[..., Floats]
) -> Interval:
    """The 95 % percentile interval of a statistic of repeats, each sample drawn on its own.

    `statistic` takes one array (RESAMPLES, n) of fp64 for each sample of n values and gives
    (RESAMPLES,).
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
    """The interval of sum(sums) / sum(counts), from both per document."""
    weights, free = resample(tuple(domains))
    return percentile_interval((weights @ sums) / (weights @ counts), free)


def quantile_intervals(
    ordered: Floats, documents: np.ndarray, domains: Sequence[str], levels: Sequence[float]
) -> list[Interval]:
    """Intervals of the quantiles at `levels` of token values, sorted, each of a document (index).

    The values are put into at most MOST_BINS bins, half of them in the upper 2 %, so that a
    resample costs a row of a product and not a sort of all tokens.
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
    """The last index of each bin."""
    if count <= MOST_BINS:
        return np.arange(count)
    body = np.linspace(0, 0.98 * (count - 1), MOST_BINS // 2, endpoint=False)
    tail = np.linspace(0.98 * (count - 1), count - 1, MOST_BINS // 2)
    return np.unique(np.concatenate([body, tail]).round().astype(np.int64))
