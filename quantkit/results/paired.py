"""Two results on the same tokens compared document by document, from their stored sums.

Two builds are wrong in the same places, so the difference of their figures is known far better than
either figure: two intervals may overlap while the difference is certain.
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
    """Mean over tokens of one result less that of another, in nats (`top1`: a fraction).

    `real` says that the 95 % interval leaves out 0 and, for a KL, that the difference is above the
    noise floor of both.
    """

    difference: float
    standard_error: float
    ci95: Interval
    floor: float
    real: bool


def paired_difference(
    result: EvalResult, other: EvalResult, quantity: Quantity
) -> PairedDifference:
    """`result` less `other` in a quantity.

    Raises:
        InputError: they were not measured on the same tokens, or one of them lacks the quantity.
    """
    require_same_tokens(result, other)
    own, theirs = (_column(found.documents, quantity) for found in (result, other))
    if not len(own) or not len(theirs):
        raise InputError(
            f"a result has no `{COLUMNS[quantity]}` per document",
            hint="quantkit eval with --reference, for both",
        )
    counts = np.asarray(result.documents.n, dtype=np.float64)
    found = stratified_mean(own - theirs, counts, result.documents.domain)
    low, high = found.interval
    floor = max(_floor(result), _floor(other)) if quantity == "kl" else 0.0
    apart = low > 0 or high < 0
    real = apart and abs(found.value) > floor
    return PairedDifference(found.value, found.standard_error, (low, high), floor, real)


def require_same_tokens(result: EvalResult, other: EvalResult) -> None:
    """Nothing, when the two can be compared.

    Raises:
        InputError: another protocol, or other tokens.
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
        if math.isfinite(low):
            found[a, b] = Difference(difference.difference, (high - low) / 2, difference.real)
    return found


def distinguishable(result: EvalResult) -> bool | None:
    """Whether the model can be told from its reference: its KL is over three noise floors."""
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
