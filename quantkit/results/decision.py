"""Passed, failed or undecided: where a whole interval lies."""

import math
from collections.abc import Iterable
from typing import Literal

from quantkit.core.limit import Operator, Undecided
from quantkit.results.schema import GateOutcome, Interval

Status = Literal["passed", "failed", "undecided"]
INVALID = "scores are not finite: the figures are no measurement"


def decide(operator: Operator, interval: Interval, limit: float) -> Status:
    """Passed where all of the interval is on the good side of the limit, failed where none is."""
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
    """The interval, or None where JSON has no number for an end of it."""
    return interval if interval and all(map(math.isfinite, interval)) else None


def missed(outcomes: Iterable[GateOutcome], undecided: Undecided = "warn") -> bool:
    """Whether a run ends in exit code 3."""
    bad = ("failed", "undecided") if undecided == "fail" else ("failed",)
    return any(outcome.status in bad for outcome in outcomes)
