"""A tensor that is not quantized differs from the original's."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.stored_weights import DenseTensor

EQUAL = 1e-4
"""Squared relative difference of two dtypes."""


def find(tensor: DenseTensor) -> Iterator[Fault]:
    """By how much, unless other tensors of its block undo the difference."""
    original = tensor.original() if tensor.original else None
    if original is None:
        return
    off, size = 0.0, 0.0
    for mine, theirs in zip(tensor.pieces(), original, strict=True):
        there = theirs.double()
        off += float((mine.double() - there).square().sum())
        size += float(there.square().sum())
    if off <= EQUAL * max(size, 1e-30) or (tensor.undone and tensor.undone()):
        return
    share = (off / max(size, 1e-30)) ** 0.5
    yield Fault(tensor.name, f"`{tensor.name}` differs from the original's by {share:.1%}")


CHECK = Check(
    "tensors",
    "a tensor that is not quantized differs from the original's",
    "copy it from the source again",
    find,
    2,
)
