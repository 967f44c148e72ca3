"""Which builds differ beyond chance: every pair on the same documents, computed once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isfinite

from quantkit.results.paired import paired_difference
from quantkit.results.schema import EvalResult


@dataclass(frozen=True)
class Difference:
    """Mean KL of one build less that of another, 95 % half-width; nats per token.

    `real` says that neither chance nor numerical noise explains it.
    """

    mean: float
    half_width: float
    real: bool


def paired_differences(
    results: Sequence[EvalResult | None],
) -> dict[tuple[int, int], Difference]:
    """The difference of each pair a < b that was scored on the same tokens and kept its sums."""
    usable = [(i, r) for i, r in enumerate(results) if r is not None and r.documents.sum_kl_nats]
    found = {}
    for (a, one), (b, other) in combinations(usable, 2):
        if _tokens(one) != _tokens(other):
            continue
        difference = paired_difference(one, other, "kl")
        low, high = difference.ci95
        if isfinite(low):
            found[a, b] = Difference(difference.difference, (high - low) / 2, difference.real)
    return found


def _tokens(result: EvalResult) -> tuple[str, str, list[str]]:
    return result.protocol.name, result.protocol.tokens_sha256, result.documents.id
