"""A gate: a limit on a measured figure, and the units that it may be stated in."""

from dataclasses import dataclass
from typing import Literal

Operator = Literal["<=", ">=", "==", "<", ">"]
Dimension = Literal["bytes", "ms", "nats", "fraction", "number", "text"]
Undecided = Literal["warn", "fail"]

UNITS: dict[str, tuple[Dimension, float]] = {
    "B": ("bytes", 1),
    **{f"{k}B": ("bytes", 1000**i) for i, k in enumerate("kMGT", 1)},
    **{f"{k}iB": ("bytes", 1024**i) for i, k in enumerate("KMGT", 1)},
    "ms": ("ms", 1),
    "s": ("ms", 1000),
    "nats": ("nats", 1),
    "%": ("fraction", 0.01),
}
"""Each unit's dimension, and its factor to the unit of results (bytes, ms, nats, fraction)."""


@dataclass(frozen=True)
class Gate:
    """A figure and its limit.

    `value` None is the baseline's figure, times `factor`. `scope` "domain" applies the limit to
    each domain of the text separately. `unit` is a key of UNITS or empty.
    """

    figure: str
    operator: Operator
    value: float | str | None
    unit: str = ""
    factor: float = 1.0
    scope: Literal["domain"] | None = None

    @property
    def limit(self) -> float | str | None:
        """The limit in the unit of results; None where it is the baseline's figure."""
        if not isinstance(self.value, float):
            return self.value
        if self.unit == "%":  # 94 / 100 is 0.94, which 94 * 0.01 is not
            return self.value / 100 * self.factor
        return self.value * (UNITS[self.unit][1] if self.unit else 1) * self.factor

    def __str__(self) -> str:
        """Text that `parse_gate` reads back to an equal gate."""
        text = f"{self.figure} {self.operator} "
        if isinstance(self.value, str):
            quote = "'" if '"' in self.value else '"'
            text += f"{quote}{self.value}{quote}"
        else:
            text += "baseline" if self.value is None else f"{_plain(self.value)}{self.unit}"
        text += f" * {_plain(self.factor)}" if self.factor != 1 else ""
        return text + (f" @{self.scope}" if self.scope else "")


def _plain(number: float) -> str:
    return repr(number).removesuffix(".0")
