"""The recipe's bars against what was measured."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quantkit.core.recipe import Gate


@dataclass(frozen=True)
class GateResult:
    """A gate and how it went; `value` is None where the figure was not measured."""

    gate: str
    value: float | None
    passed: bool


def judge(gates: Iterable[Gate], evaluation: Mapping[str, Any] | None) -> tuple[GateResult, ...]:
    """Each gate's result; a figure that was not measured, or is not finite, passes none."""
    results = []
    for gate in gates:
        value: Any = evaluation
        for key in gate.metric.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        number = float(value) if isinstance(value, int | float) else None
        passed = number is not None and gate.holds(number)
        results.append(GateResult(f"{gate.metric} {gate.operator} {gate.limit:g}", number, passed))
    return tuple(results)
