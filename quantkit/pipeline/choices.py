"""Choices of schemes in a model: groups of linears that engines fuse, and schemes for each."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quantkit.core.facts import Check, LinearFacts
from quantkit.core.recipe import Override, spread_of
from quantkit.core.scheme import Scheme
from quantkit.model.skeleton import Skeleton
from quantkit.model.structure import LinearGroup, Structure

EXPERTS = ".experts."
PATTERN_LENGTH = 180
"""Characters of an override's pattern; recipes accept at most 200."""


@dataclass(frozen=True)
class Choice:
    """Linears of block `block` that must share a scheme, and the schemes that all of them may have.

    `groups` are those of them that read one input. Scheme None leaves them unquantized.
    """

    block: int
    groups: tuple[LinearGroup, ...]
    linears: tuple[LinearFacts, ...]
    schemes: tuple[Scheme | None, ...]

    @property
    def experts(self) -> int:
        """Number of routed experts in this choice, of which a token reads a few; 0: none."""
        found = (re.search(r"\.experts\.(\d+)\.", linear.name) for linear in self.linears)
        return len({match[1] for match in found if match})


def choices_of(
    quantized: Iterable[LinearFacts],
    skeleton: Skeleton,
    structure: Structure,
    schemes: Sequence[Scheme],
    checks: Iterable[Check],
    overrides: Sequence[Override] = (),
) -> list[Choice]:
    """One choice for each group of linears that are `quantized`, in the order of the blocks.

    All routed experts of a block are one choice: engines run them as one operation. `overrides` are
    those of the model's family: a scheme that contradicts them is not offered.
    """
    rules = tuple(checks)
    by_name = {linear.name: linear for linear in quantized}
    found = []
    for index in range(len(skeleton.blocks)):
        prefix = skeleton.block_name(index)
        together: dict[str, list[LinearGroup]] = {}
        for group in structure.of(index).groups:
            if f"{prefix}.{group.names[0]}" in by_name:
                expert = f".{group.names[0]}".partition(EXPERTS)
                together.setdefault(expert[0] if expert[1] else group.names[0], []).append(group)
        for groups in together.values():
            linears = tuple(by_name[f"{prefix}.{n}"] for g in groups for n in g.names)
            legal = (
                s
                for s in schemes
                if all(_holds(s, f, rules) and _as_stated(s, f, overrides) for f in linears)
            )
            found.append(Choice(index, tuple(groups), linears, (*legal, None)))
    return found


def _holds(scheme: Scheme, linear: LinearFacts, checks: tuple[Check, ...]) -> bool:
    if scheme.group_size and linear.in_features % scheme.group_size:
        return False
    return all(check(scheme, linear) is None for check in checks)


def _as_stated(scheme: Scheme, linear: LinearFacts, overrides: Iterable[Override]) -> bool:
    """Whether a scheme agrees with all overrides of a family that cover the linear."""
    return all(
        override.grid in (None, scheme.kind.name)
        and override.bits in (None, scheme.bits)
        and override.group_size in (None, "auto", spread_of(scheme))
        and override.symmetric in (None, scheme.symmetric)
        for override in overrides
        if override.covers(linear.name)
    )


def overrides_for(
    choices: Sequence[Choice], chosen: Sequence[Scheme | None], base: Scheme
) -> tuple[Override, ...]:
    r"""The overrides of a recipe with scheme `base` for all linears with another chosen scheme.

    Linears of one kind and scheme go together: `re:model\.layers\.(0|7)\.mlp\.down_proj`.
    """
    blocks: dict[tuple[str, Scheme | None], list[str]] = {}
    for choice, scheme in zip(choices, chosen, strict=True):
        if scheme == base:
            continue
        for linear in choice.linears:
            shape, number = _pattern(linear.name, choice.block)
            known = blocks.setdefault((shape, scheme), [])
            if number not in known:
                known.append(number)
    return tuple(
        _override(f"re:{shape.replace('#', part)}", scheme, base)
        for (shape, scheme), numbers in blocks.items()
        for part in _alternatives(numbers, PATTERN_LENGTH - len(shape))
    )


def _pattern(name: str, block: int) -> tuple[str, str]:
    """The name as a regex with `#` for the block's number, which matches any expert's number."""
    head, number, tail = name.partition(f".{block}.")
    after = re.sub(r"\\.experts\\.\d+\\.", r"\\.experts\\.\\d+\\.", "." + re.escape(tail))
    return re.escape(head) + r"\.#\." + after[1:], number.strip(".")


def _alternatives(numbers: Sequence[str], room: int) -> list[str]:
    """`(0|3|7)` in pieces of at most `room` characters."""
    parts: list[str] = []
    for number in numbers:
        if parts and len(parts[-1]) + len(number) + 3 <= room:
            parts[-1] += f"|{number}"
        else:
            parts.append(number)
    return [f"({part})" for part in parts]


def _override(match: str, scheme: Scheme | None, base: Scheme) -> Override:
    if scheme is None:
        return Override(match, skip=True)
    grid = None if scheme.kind == base.kind else scheme.kind.name
    size, symmetric = spread_of(scheme), scheme.symmetric
    return Override(match, grid=grid, bits=scheme.bits, group_size=size, symmetric=symmetric)
