"""Means over tokens that are not independent, and how well they are known."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Estimate:
    """A mean and its standard error, NaN where one cluster alone was seen."""

    value: float
    standard_error: float


def clustered_mean(values: torch.Tensor, clusters: Sequence[int]) -> Estimate:
    """Mean over all tokens; its standard error counts clusters, not tokens.

    `values` is (windows, positions), `clusters` has one entry per window. Tokens of one text share
    its topic and difficulty: the error that takes them as independent is several times too small.
    For the ratio sum(s_c) / sum(n_c) over clusters c, linearised:
    SE^2 = C / (C - 1) * sum_c (s_c - mean * n_c)^2 / (sum_c n_c)^2, which is the variance of
    the cluster means over C where all clusters have one size (Cochran, Sampling Techniques, 2.11).
    Sums are in fp64, window by window in order: no count of threads changes them.
    """
    # The sum of a row is taken by one thread; a full reduction would be split among them.
    sums = values.double().sum(dim=1).tolist()
    by_cluster: dict[int, tuple[float, int]] = {}
    for cluster, window_sum in zip(clusters, sums, strict=True):
        total, count = by_cluster.get(cluster, (0.0, 0))
        by_cluster[cluster] = (total + window_sum, count + values.shape[1])
    count = sum(n for _, n in by_cluster.values())
    mean = sum(s for s, _ in by_cluster.values()) / count
    spread = sum((s - mean * n) ** 2 for s, n in by_cluster.values())
    drawn = len(by_cluster)
    error = math.sqrt(drawn / (drawn - 1) * spread) / count if drawn > 1 else math.nan
    return Estimate(mean, error)
