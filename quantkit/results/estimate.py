"""Means over tokens that are not independent, with their standard errors.

The random sample is one of documents, stratified by domain; everything here starts from sums per
document. It does not import torch: gates, reports and comparisons of stored results use it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
POWER_FACTOR = 2.80
"""A difference of so many standard errors is found with 80 % power at the 5 % level.

It is z(0.975) + z(0.8) = 1.96 + 0.84, as in the usual formula for sample sizes."""


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error and its 95 % interval; NaN errors for a single document."""

    value: float
    standard_error: float
    degrees_of_freedom: int

    @property
    def interval(self) -> tuple[float, float]:
        """The value plus and minus t standard errors."""
        if self.degrees_of_freedom < 1:
            return math.nan, math.nan
        reach = t_quantile(0.5 + CONFIDENCE / 2, self.degrees_of_freedom) * self.standard_error
        return self.value - reach, self.value + reach


def stratified_mean(
    sums: Sequence[float] | Floats, counts: Sequence[float] | Floats, domains: Sequence[str]
) -> Estimate:
    """Mean over all tokens from sums and counts (documents,), its error stratified by domain.

    For the ratio sum(s_D) / sum(n_D), linearised: with z_D = (s_D - mean * n_D) / sum(n_D),
    SE^2 = sum over domains of k / (k - 1) * sum (z_D - their mean)^2, k the domain's documents.
    With documents of one size that is sum W^2 var / k, the textbook's stratified error (Cochran,
    Sampling Techniques, 5.3 and 6.10). Tokens of one document share topic and difficulty: an error
    that treats them as independent is several times too small.
    """
    total = np.asarray(sums, dtype=np.float64)
    weight = np.asarray(counts, dtype=np.float64)
    count = float(weight.sum())
    mean = float(total.sum()) / count
    parts = (total - mean * weight) / count
    variance, free = 0.0, 0
    for members in strata(domains):
        k = len(members)
        if k > 1:
            chosen = parts[members]
            variance += k / (k - 1) * float(((chosen - chosen.mean()) ** 2).sum())
            free += k - 1
    return Estimate(mean, math.sqrt(variance) if free else math.nan, free)


def strata(domains: Sequence[str]) -> list[list[int]]:
    """Indices of the documents of each domain; domains with one document are merged."""
    found: dict[str, list[int]] = {}
    for index, domain in enumerate(domains):
        found.setdefault(domain, []).append(index)
    several = [members for members in found.values() if len(members) > 1]
    single = [members[0] for members in found.values() if len(members) == 1]
    if len(single) == 1 and several:
        smallest = min(several, key=len)
        smallest.append(single.pop())
    return [*several, single] if single else several


def t_quantile(level: float, degrees_of_freedom: int) -> float:
    """The quantile of Student's t."""
    return float(stdtrit(degrees_of_freedom, level))
