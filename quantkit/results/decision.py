"""The decision about a gate: passed, failed or undecided, by its 95 % interval."""

import math
from collections.abc import Iterable
from typing import Literal

from quantkit.core.limit import Operator, Undecided
from quantkit.results.schema import GateOutcome, Interval

Status = Literal["passed", "failed", "undecided"]
INVALID = "scores are not finite, so the figures are invalid"


def decide(operator: Operator, interval: Interval, limit: float) -> Status:
    """Passed if the whole interval satisfies the limit, failed if no part does, else undecided."""
    low, high = interval
    if operator == "==":
        if low == high == limit:
            return "passed"
        return "undecided" if low <= limit <= high else "failed"
    if operator in (">", ">="):
        low, high, limit = -high, -low, -limit
    if operator in ("<", ">"):
        passed, failed = high < limit, low >= limit
    else:
        passed, failed = high <= limit, low > limit
    return "passed" if passed else "failed" if failed else "undecided"


def finite(interval: Interval | None) -> Interval | None:
    """The interval, or None if an end is not finite, which JSON cannot represent."""
    return interval if interval and all(map(math.isfinite, interval)) else None


def missed(outcomes: Iterable[GateOutcome], undecided: Undecided = "warn") -> bool:
    """Whether a gate is missed, so that the command ends with exit code 3."""
    bad = ("failed", "undecided") if undecided == "fail" else ("failed",)
    return any(outcome.status in bad for outcome in outcomes)
