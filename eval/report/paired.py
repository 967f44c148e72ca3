"""Two builds on the same documents: the difference of their KL, with the error of documents.

Tokens of one document are alike, so documents are what is independent (cluster-robust errors);
strata are the domains of the text. Differences of the same documents err far less than the means.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import pi, sqrt, tan
from statistics import NormalDist

from quantkit.eval.results import Documents, EvalResult


@dataclass(frozen=True)
class Difference:
    """Mean KL of one build minus that of another; 95 % half-width; nats per token."""

    mean: float
    half_width: float


def paired_differences(
    results: Sequence[EvalResult | None],
) -> dict[tuple[int, int], Difference]:
    """The difference of each pair (a < b) of one token hash with sums per document."""
    usable = [(i, r) for i, r in enumerate(results) if r is not None and _complete(r.documents)]
    found = {}
    for (a, one), (b, other) in combinations(usable, 2):
        same_tokens = one.protocol.tokens_sha256 == other.protocol.tokens_sha256
        if same_tokens and one.documents.n == other.documents.n:
            found[a, b] = paired_difference(one.documents, other.documents)
    return found


def paired_difference(one: Documents, other: Documents) -> Difference:
    """Token-weighted mean of the documents' differences, and t times its stratified error.

    SE^2 = sum over strata of W^2 * n / (n - 1) * sum(w^2 * (d - mean)^2), with w a document's
    share of its stratum's tokens and W the stratum's share of all (Cochran, Sampling Techniques,
    3rd ed., 6.4 and 5.3). A stratum of one document tells nothing of its spread, so such strata
    are taken together.
    """
    tokens = one.n
    d = [(a - b) / n for a, b, n in zip(one.sum_kl_nats, other.sum_kl_nats, tokens, strict=True)]
    total = sum(tokens)
    variance = 0.0
    freedom = 0
    for stratum in _strata(one.domain, len(d)):
        n = sum(tokens[i] for i in stratum)
        mean = sum(tokens[i] * d[i] for i in stratum) / n
        spread = sum((tokens[i] / n * (d[i] - mean)) ** 2 for i in stratum)
        variance += (n / total) ** 2 * spread * len(stratum) / (len(stratum) - 1)
        freedom += len(stratum) - 1
    mean = sum(n * x for n, x in zip(tokens, d, strict=True)) / total
    return Difference(mean, student(freedom) * sqrt(variance))


def student(freedom: int, level: float = 0.975) -> float:
    """Quantile of Student's t: exact for 1 and 2 degrees of freedom, else an expansion.

    The expansion around the normal quantile (Abramowitz and Stegun 26.7.5) is 0.4 % low at three
    degrees and exact to 1e-3 from four on.
    """
    if freedom == 1:
        return tan(pi * (level - 0.5))
    if freedom == 2:
        return (2 * level - 1) / sqrt(2 * level * (1 - level))
    z = NormalDist().inv_cdf(level)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))


def _complete(documents: Documents) -> bool:
    count = len(documents.n)
    return count > 1 and count == len(documents.sum_kl_nats) and min(documents.n) > 0


def _strata(domains: Sequence[str], count: int) -> list[list[int]]:
    """Indices of documents by domain; single ones together, all together where that fails."""
    by_domain: dict[str, list[int]] = {}
    for i in range(count):
        by_domain.setdefault(domains[i] if len(domains) == count else "", []).append(i)
    strata = [found for found in by_domain.values() if len(found) > 1]
    single = [found[0] for found in by_domain.values() if len(found) == 1]
    if len(single) > 1:
        strata.append(single)
    elif single:
        strata[0] = [*strata[0], *single]
    return strata
