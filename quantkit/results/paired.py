"""Paired comparison of two results on the same tokens, document by document, from stored sums.

Errors of two builds are correlated over documents, so their difference has a much smaller error
than either figure: two intervals may overlap although the difference is significant.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from quantkit.core.errors import InputError
from quantkit.results.estimate import Floats, stratified_mean
from quantkit.results.schema import FLOOR_FACTOR, Documents, EvalResult, Interval

Quantity = Literal["kl", "nll", "top1"]
COLUMNS: dict[Quantity, str] = {"kl": "sum_kl_nats", "nll": "sum_nll", "top1": "top1_hits"}


@dataclass(frozen=True)
class PairedDifference:
    """Mean over tokens of one result minus that of another, in nats (`top1`: a fraction).

    `real`: the 95 % interval excludes 0 and, for a KL, the difference is above both noise floors.
    """

    difference: float
    standard_error: float
    ci95: Interval
    floor: float
    real: bool


def paired_difference(
    result: EvalResult, other: EvalResult, quantity: Quantity
) -> PairedDifference:
    """`result` minus `other` in a quantity.

    Raises:
        InputError: their tokens differ, or one of them does not contain the quantity.
    """
    require_same_tokens(result, other)
    own, theirs = (_column(found.documents, quantity) for found in (result, other))
    if not len(own) or not len(theirs):
        raise InputError(
            f"a result contains no `{COLUMNS[quantity]}` per document",
            hint="quantkit eval with --reference for both",
        )
    counts = np.asarray(result.documents.n, dtype=np.float64)
    found = stratified_mean(own - theirs, counts, result.documents.domain)
    low, high = found.interval
    floor = max(_floor(result), _floor(other)) if quantity == "kl" else 0.0
    apart = low > 0 or high < 0
    real = apart and abs(found.value) > floor
    return PairedDifference(found.value, found.standard_error, (low, high), floor, real)


def require_same_tokens(result: EvalResult, other: EvalResult) -> None:
    """Check that two results can be compared.

    Raises:
        InputError: their protocols, tokens or documents differ.
    """
    pairs = (
        ("protocol", result.protocol.name, other.protocol.name),
        ("SHA-256 of the tokens", result.protocol.tokens_sha256, other.protocol.tokens_sha256),
        ("documents", result.documents.id, other.documents.id),
    )
    for name, one, two in pairs:
        if one != two:
            raise InputError(
                f"the two results differ in {name}",
                why=f"{_short(one)} and {_short(two)}: their figures cannot be compared",
                hint="quantkit eval of both with the same --protocol, --text and --windows",
            )


@dataclass(frozen=True)
class Difference:
    """Mean KL of one build minus that of another, and its 95 % half-width, in nats per token.

    `real`: neither chance nor the noise floor explains it.
    """

    mean: float
    half_width: float
    real: bool


def paired_differences(
    results: Sequence[EvalResult | None],
) -> dict[tuple[int, int], Difference]:
    """The difference of each pair a < b with the same tokens and stored sums."""
    usable = [(i, r) for i, r in enumerate(results) if r is not None and r.documents.sum_kl_nats]
    found = {}
    for (a, one), (b, other) in combinations(usable, 2):
        if _tokens(one) != _tokens(other):
            continue
        difference = paired_difference(one, other, "kl")
        low, high = difference.ci95
        if math.isfinite(low):
            found[a, b] = Difference(difference.difference, (high - low) / 2, difference.real)
    return found


def distinguishable(result: EvalResult) -> bool | None:
    """Whether the model is distinguishable from its reference: KL above three noise floors."""
    if result.kl is None or result.kl.mean is None or result.kl.floor_mean is None:
        return None
    return result.kl.mean > FLOOR_FACTOR * result.kl.floor_mean


def _column(documents: Documents, quantity: Quantity) -> Floats:
    return np.asarray(getattr(documents, COLUMNS[quantity]), dtype=np.float64)


def _floor(result: EvalResult) -> float:
    floor = result.kl.floor_mean if result.kl else None
    return floor if floor is not None and math.isfinite(floor) else 0.0


def _short(value: str | list[str]) -> str:
    return value[:16] if isinstance(value, str) else f"{len(value)} documents"


def _tokens(result: EvalResult) -> tuple[str, str, list[str]]:
    return result.protocol.name, result.protocol.tokens_sha256, result.documents.id
