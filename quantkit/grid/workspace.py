"""Bytes that rounding to a grid takes while it runs: parts of methods' rules, without torch.

`benchmarks/planning.py` holds the rules against real runs.
"""

from quantkit.core.method import GroupShape
from quantkit.grid.tiles import tiles

FP32 = 4
BUFFERS = 15
"""Buffers of the numbers that a search of scales takes at once which it keeps alive: on a CPU, with
what the allocator keeps, as so small ones are not given back."""


def copies(group: GroupShape) -> int:
    """Bytes of the weights in fp32, where they are not so already."""
    return FP32 * group.weights if group.widened else 0


def square(group: GroupShape) -> int:
    """Bytes of one Hessian."""
    return FP32 * group.inputs**2


def searching(group: GroupShape, weights: int) -> int:
    """Bytes of a search of scales for so many weights.

    A GPU takes groups side by side in a copy, beside two buffers of it; whole rows need no copy.
    Some ten numbers are kept for every scale.
    """
    taken = min(tiles(group.device).search, weights)
    if group.device == "cpu":
        return BUFFERS * FP32 * taken
    buffers = 2 if group.group == group.inputs else 3
    return FP32 * (buffers * taken + 10 * -(-taken // group.group))


def rounding(group: GroupShape, weights: int) -> int:
    """Bytes of `nearest`: columns in fp32, codes twice, or beside the codes a group as floats."""
    buffers: int = group.scheme.kind.buffers
    whole = group.scheme.rows != 1  # blocks are rounded at once
    panel = buffers * FP32 * (weights if whole else group.group * weights // group.inputs)
    if group.device == "cpu":
        return 5 * weights + max(weights, panel) + searching(group, weights)
    return 5 * weights + scaling(group, weights) + max(weights, panel, searching(group, weights))


def scaling(group: GroupShape, weights: int) -> int:
    """Bytes of the scales and zeros of so many weights: as found in fp32, and stacked."""
    return (2 if group.scheme.symmetric else 4) * FP32 * -(-weights // group.group)


def rounding_each(group: GroupShape) -> int:
    """Bytes of `round_each`: one linear after the other; the codes of those before it stay."""
    return group.weights - group.largest + rounding(group, group.largest)


def folding(group: GroupShape) -> int:
    """Bytes of a method that rescales: weights and statistics as they were and stretched."""
    stretched = FP32 * group.weights
    sample = FP32 * group.sample * group.inputs
    kept = sample if group.device == "cpu" else sample + square(group)
    solving = max(copies(group), 2 * square(group) + sample, kept + rounding_each(group))
    return stretched + solving
