"""A recipe: method, scheme, format, calibration, overrides and gates, without a model."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

from quantkit.core.limit import Gate, Undecided
from quantkit.core.patterns import Patterns
from quantkit.core.scheme import Activation, KVCache, Scheme

GroupSize = int | Literal["auto", "channel", "tensor", "128x128"]
SPREADS: Mapping[GroupSize, tuple[int | None, int | None]] = {
    "channel": (None, 1),
    "tensor": (None, None),
    "128x128": (128, 128),
}
"""Inputs and outputs that share a scale, of sizes that are named; None: all."""


def spread_of(scheme: Scheme) -> GroupSize:
    """The group size of a scheme as recipes write it."""
    spread = (scheme.group_size, scheme.rows)
    named = (name for name, stated in SPREADS.items() if stated == spread)
    return next(named, scheme.group_size or "channel")


ExpertTokens = Literal["routed", "all"]


@dataclass(frozen=True)
class SchemeSpec:
    """A scheme as a recipe states it: `auto` takes the largest of the grid's that divides."""

    grid: str = "int"
    bits: int = 4
    group_size: GroupSize = "auto"
    symmetric: bool = True
    activation: Activation | None = None
    double_quant: bool = False

    def resolve(self, automatic: int | None) -> Scheme:
        """The scheme with `auto` replaced by `automatic` (None: channel)."""
        size, rows = SPREADS.get(self.group_size, (self.group_size, 1))
        scheme = Scheme(
            self.grid,
            self.bits,
            automatic if size == "auto" else size,  # type: ignore[arg-type]  # else a number
            self.symmetric,
            self.activation,
            self.double_quant,
            rows,
        )
        return scheme.stored()


@dataclass(frozen=True)
class Override:
    """An exception for the modules whose full name `match` covers: a glob, or a regex after `re:`.

    `skip` leaves them as they are; otherwise the stated fields replace the recipe's.
    """

    match: str
    skip: bool = False
    grid: str | None = None
    bits: int | None = None
    group_size: GroupSize | None = None
    symmetric: bool | None = None

    def covers(self, name: str) -> bool:
        """Whether the override applies to module `name`.

        Raises:
            InputError: its regex takes too long.
        """
        if self._patterns is not None:
            return self._patterns.first(name, whole=True) is not None
        return fnmatchcase(name, self.match)

    @cached_property
    def _patterns(self) -> Patterns | None:
        if not self.match.startswith("re:"):
            return None
        return Patterns([self.match[3:]], "an override")

    def apply(self, spec: SchemeSpec) -> SchemeSpec:
        """The scheme of a covered module."""
        stated = {
            key: value
            for key in ("grid", "bits", "group_size", "symmetric")
            if (value := getattr(self, key)) is not None
        }
        return replace(spec, **stated)


@dataclass(frozen=True)
class CalibrationSpec:
    """The calibration text, and its size: `samples` windows of `sequence_length` tokens.

    `experts`: each expert is calibrated on the tokens that are `routed` to it, or on all of them.
    `compensate`: weights are first moved to where their outputs, for the inputs that quantized
    predecessors give, are nearest to those of the original model.
    """

    text: str = "default"
    samples: int = 128
    sequence_length: int = 2048
    experts: ExpertTokens = "routed"
    compensate: bool = False


@dataclass(frozen=True)
class Recipe:
    """All validated settings of a run, independent of the model.

    `allow_partial`: accept a model of which less than 90 % of the linear weights can be quantized.
    `undecided`: "fail" counts a gate as missed if its figure is not known precisely enough.
    `kv_cache`: what attention caches keys and values in; None leaves them in 16 bits.
    """

    name: str
    method: str
    format: str
    description: str = ""
    scheme: SchemeSpec = SchemeSpec()
    kv_cache: KVCache | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    overrides: tuple[Override, ...] = ()
    calibration: CalibrationSpec = CalibrationSpec()
    gates: tuple[Gate, ...] = ()
    undecided: Undecided = "warn"
    engines: tuple[str, ...] = ()
    allow_partial: bool = False
