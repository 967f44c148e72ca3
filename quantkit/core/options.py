"""What methods can be told and which grids they make, known before torch is loaded.

A method that is not here states both in its own file, and `plan` asks nothing of it.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class AwqOptions:
    """Every ingredient can be switched off.

    rescale: search scales of input channels.
    clip: fit each group's range to least weighted error, instead of spanning it.
    signed: symmetric scales may be negative, which puts the largest weight on the outermost code.
    sink: weight of the sequences' first tokens where keys and values are made, in units of all
        tokens together.
    """

    rescale: bool = True
    clip: bool = True
    signed: bool = True
    sink: float = 1.0


@dataclass(frozen=True)
class GptqOptions:
    """Every ingredient can be switched off.

    damp: added to the diagonal of H, in units of its mean, or of each entry if scale_free_damping.
    sink: weight of the sequences' first tokens where keys and values are made, in units of all
        tokens together; plain GPTQ ruins those that every query looks at.
    signed: symmetric scales may be negative, which puts the largest weight on the outermost code.
    search: a group's scale spans it ("minmax"), has the least error weighted by the pivots
        ("weighted"), or is the best of some around that one by a run through the group ("trial").
    order: channels with large inputs first, groups kept together ("group"), or as they stand.
    keep_better_rows: rows on which rounding to nearest loses less are taken from there.
    """

    damp: float = 0.05
    scale_free_damping: bool = False
    sink: float = 1.0
    signed: bool = True
    search: Literal["trial", "weighted", "minmax"] = "trial"
    order: Literal["group", "natural"] = "group"
    keep_better_rows: bool = True


@dataclass(frozen=True)
class Nf4Options:
    """search: scales of least error, weighted by the Hessian's diagonal where inputs are known.

    Without it codes and scales, nested ones too, are those of bitsandbytes, bit for bit.
    """

    search: bool = True


@dataclass(frozen=True)
class RtnOptions:
    """search: fit scales to least error, weighted by the Hessian's diagonal where inputs are known.

    signed: symmetric scales may be negative, which puts the largest weight on the outermost code.
    """

    search: bool = True
    signed: bool = True


@dataclass(frozen=True)
class SmoothquantOptions:
    """Every ingredient can be switched off.

    rescale: fold channel scales into the producer. alpha: how much of the inputs' range goes into
        the weights, from 0 to 1; None searches it for each pair of producer and group.
    search: fit each row's scale to least weighted error, instead of spanning the row.
    """

    rescale: bool = True
    alpha: float | None = None
    search: bool = True

    def __post_init__(self) -> None:
        """Refuse an alpha that no share is."""
        if self.alpha is not None and self.alpha > 1:
            raise ValueError(f"alpha is a share from 0 to 1, not {self.alpha}")


class Told(Protocol):
    """What rules ask of a method: a `Method`, or the facts of one."""

    @property
    def name(self) -> str:
        """Its key in the registry."""

    @property
    def options(self) -> type[Any]:
        """The class of its options, all with defaults."""

    @property
    def grids(self) -> frozenset[tuple[str, int]]:
        """The (grid, bits) pairs that it makes."""


@dataclass(frozen=True)
class MethodFacts:
    """A method without its algorithm."""

    name: str
    options: type[Any]
    grids: frozenset[tuple[str, int]]


INTEGERS = frozenset(("int", bits) for bits in (2, 3, 4, 8))
_KNOWN = (
    MethodFacts("awq", AwqOptions, INTEGERS),
    MethodFacts("gptq", GptqOptions, INTEGERS),
    MethodFacts("nf4", Nf4Options, frozenset({("nf4", 4)})),
    MethodFacts("rtn", RtnOptions, INTEGERS),
    MethodFacts("smoothquant", SmoothquantOptions, frozenset({("int", 8)})),
)
METHODS = {facts.name: facts for facts in _KNOWN}
