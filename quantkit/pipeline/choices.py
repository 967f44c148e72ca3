"""What may differ between the parts of a model: groups that engines fuse, and schemes for each."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quantkit.core.format import LinearFacts
from quantkit.core.plan import Check
from quantkit.core.recipe import GroupSize, Override
from quantkit.core.scheme import Scheme
from quantkit.model.structure import LinearGroup
from quantkit.pipeline.prepare import Prepared

EXPERTS = ".experts."
PATTERN_LENGTH = 180
"""Characters of an override's pattern; recipes take no more than 200."""


@dataclass(frozen=True)
class Choice:
    """Linears of block `block` that must share a scheme, and the schemes that all of them may have.

    `groups` are those of them that read one input. None among the schemes leaves them as they are.
    """

    block: int
    groups: tuple[LinearGroup, ...]
    linears: tuple[LinearFacts, ...]
    schemes: tuple[Scheme | None, ...]

    @property
    def experts(self) -> int:
        """How many routed experts of a block it is, of which a token reads a few; 0: none."""
        found = (re.search(r"\.experts\.(\d+)\.", linear.name) for linear in self.linears)
        return len({match[1] for match in found if match})


def choices_of(
    prepared: Prepared, schemes: Sequence[Scheme], checks: Iterable[Check]
) -> list[Choice]:
    """One choice for each group of linears that `prepared` quantizes, in the order of the blocks.

    All routed experts of a block are one: engines run them as one operation.
    """
    rules = tuple(checks)
    quantized = {
        d.linear.name: d.linear for d in prepared.plan.dispositions if d.scheme is not None
    }
    skeleton = prepared.model.skeleton
    found = []
    for index in range(len(skeleton.blocks)):
        prefix = skeleton.block_name(index)
        together: dict[str, list[LinearGroup]] = {}
        for group in prepared.structure.of(index).groups:
            if f"{prefix}.{group.names[0]}" in quantized:
                expert = f".{group.names[0]}".partition(EXPERTS)
                together.setdefault(expert[0] if expert[1] else group.names[0], []).append(group)
        for groups in together.values():
            linears = tuple(quantized[f"{prefix}.{n}"] for g in groups for n in g.names)
            legal = (s for s in schemes if all(_holds(s, linear, rules) for linear in linears))
            found.append(Choice(index, tuple(groups), linears, (*legal, None)))
    return found


def _holds(scheme: Scheme, linear: LinearFacts, checks: tuple[Check, ...]) -> bool:
    if scheme.group_size and linear.in_features % scheme.group_size:
        return False
    return all(check(scheme, linear) is None for check in checks)


def overrides_for(
    choices: Sequence[Choice], chosen: Sequence[Scheme | None], base: Scheme
) -> tuple[Override, ...]:
    r"""What a recipe whose scheme is `base` must say of the linears that are chosen otherwise.

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
        _override(f"re:{shape.replace('#', part)}", scheme)
        for (shape, scheme), numbers in blocks.items()
        for part in _alternatives(numbers, PATTERN_LENGTH - len(shape))
    )


def _pattern(name: str, block: int) -> tuple[str, str]:
    """The name as a regex with `#` for its block's number, and any number of an expert."""
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


def _override(match: str, scheme: Scheme | None) -> Override:
    if scheme is None:
        return Override(match, skip=True)
    size: GroupSize = "channel" if scheme.group_size is None else scheme.group_size
    return Override(match, bits=scheme.bits, group_size=size, symmetric=scheme.symmetric)
