"""How much of a matrix one step takes, by kind of device; without torch.

A CPU is fastest on what its caches hold. A GPU is fastest on few large steps, as each launch of a
kernel costs as much time as a million multiply-adds.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tiles:
    """Sizes of steps.

    search: numbers that a search of scales takes at once. groups: groups of inputs that it takes
    together, at most. ldlq: numbers of the rows that are solved at once, of which a group's share
    exists once more a trial. dealt: numbers of the rows that are dealt out together where several
    processes solve. hessian: rows per product of a Hessian, of which only the part on and
    above the diagonal is computed. losses: columns per product of squared output errors. nf4:
    weights that a search of NF4 scales takes at once. logits: those of one model that are scored at
    once; on a CPU four fp32 tiles of them stay in the second-level cache.
    """

    search: int
    groups: int
    ldlq: int
    dealt: int
    hessian: int
    losses: int
    nf4: int
    logits: int


LOGIT_BYTES = 32 << 20
"""Of all fp32 logits of some positions, where a model gives them only at once."""
POSITIONS = 512
"""Scored together at most: each tile of the head's weight is read and widened once for them."""
WIDEST = 8192
"""Columns in a tile of logits at most, where there are few positions."""
NARROW = 32
"""Inputs of groups so small that a CPU, too, is faster with several at a time."""

CPU = Tiles(
    search=1 << 18,
    groups=1,
    ldlq=1 << 21,
    dealt=1 << 21,
    hessian=192,
    losses=128,
    nf4=1 << 18,
    logits=1 << 17,
)
GPU = Tiles(
    search=1 << 24,
    groups=1 << 12,
    ldlq=1 << 29,
    dealt=1 << 22,
    hessian=2048,
    losses=1024,
    nf4=1 << 24,
    logits=1 << 22,
)


def tiles(kind: str) -> Tiles:
    """The sizes for a kind of device, as torch names it ("cpu", "cuda")."""
    return CPU if kind == "cpu" else GPU


def groups_at_once(kind: str, size: int, rows: int, *, alone: bool) -> int:
    """Groups of `size` inputs of so many rows that a search of scales takes together.

    `alone`: one at a time on a CPU, as ever: the order of sums decides between near scales.
    """
    found = tiles(kind)
    most = found.groups if alone or size > NARROW else GPU.groups
    return max(1, min(most, found.search // (size * rows)))


def rows_at_once(numbers: int, inputs: int) -> int:
    """Rows of `inputs` that hold about so many numbers; at least 16."""
    return max(16, numbers // inputs)
