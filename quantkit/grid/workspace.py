"""Bytes that rounding to a grid takes while it runs: parts of methods' rules, without torch.

`benchmarks/planning.py` holds the rules against real runs.
"""

from quantkit.core.method import GroupShape
from quantkit.grid.tiles import tiles

FP32 = 4
BUFFERS = 15
"""Buffers of the numbers that a search of scales takes at once which it keeps alive."""


def copies(group: GroupShape) -> int:
    """Bytes of the weights in fp32, where they are not so already."""
    return FP32 * group.weights if group.widened else 0


def square(group: GroupShape) -> int:
    """Bytes of one Hessian."""
    return FP32 * group.inputs**2


def searching(group: GroupShape, weights: int) -> int:
    """Bytes of a search of scales for so many weights."""
    return BUFFERS * FP32 * min(tiles(group.device).search, weights)


def rounding(group: GroupShape, weights: int) -> int:
    """Bytes of `nearest`: columns in fp32, codes twice, or beside the codes a group as floats."""
    panel = FP32 * group.group * weights // group.inputs
    return 5 * weights + max(weights, panel) + searching(group, weights)


def rounding_each(group: GroupShape) -> int:
    """Bytes of `round_each`: one linear after the other; the codes of those before it stay."""
    return group.weights - group.largest + rounding(group, group.largest)


def folding(group: GroupShape) -> int:
    """Bytes of a method that rescales: weights and statistics as they were and stretched."""
    stretched = FP32 * group.weights
    sample = FP32 * group.sample * group.inputs
    solving = max(copies(group), 2 * square(group) + sample, sample + rounding_each(group))
    return stretched + solving
