"""Means over documents drawn from several domains, and how well they are known."""

import math
from collections.abc import Sequence
from statistics import NormalDist

_SMALL_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
Z = NormalDist().inv_cdf(0.975)


def document_mean(
    sums: Sequence[float], counts: Sequence[int], domains: Sequence[str]
) -> tuple[float, float]:
    """The mean per token and half its 95 % interval, from each document's sum and token count.

    The unit is the document, drawn within its domain: for e_D = s_D - mean * n_D,
    SE^2 = sum over domains of C / (C - 1) * sum_D (e_D - mean of e)^2 / (sum n)^2, the ratio
    estimator of a stratified sample (Cochran, Sampling Techniques, 6.11). Domains of one document
    show no spread and are taken together. Half the interval is infinite for a single document.
    """
    tokens = sum(counts)
    mean = math.fsum(sums) / tokens
    rests: dict[str, list[float]] = {}
    for total, count, domain in zip(sums, counts, domains, strict=True):
        rests.setdefault(domain, []).append(total - mean * count)
    alone = [rest[0] for rest in rests.values() if len(rest) == 1]
    strata = [rest for rest in rests.values() if len(rest) > 1]
    if len(alone) > 1:
        strata.append(alone)
    elif alone and strata:
        strata[0].append(alone[0])
    if not strata:
        return mean, math.inf
    variance = sum(len(rest) / (len(rest) - 1) * _squares(rest) for rest in strata)
    freedom = sum(len(rest) - 1 for rest in strata)
    return mean, t95(freedom) * math.sqrt(variance) / tokens


def t95(freedom: int) -> float:
    """The 97.5 % point of Student's t, to 1 % (Cornish-Fisher expansion, exact below 5)."""
    if freedom in _SMALL_T:
        return _SMALL_T[freedom]
    first = (Z**3 + Z) / (4 * freedom)
    second = (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)
    return Z + first + second


def _squares(values: Sequence[float]) -> float:
    centre = math.fsum(values) / len(values)
    return math.fsum((value - centre) ** 2 for value in values)
