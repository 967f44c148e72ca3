"""All scales of a weight are the same number, which those of real weights never are."""

from collections.abc import Iterator

import torch

from quantkit.core.check import Check, Fault
from quantkit.model.stored_weights import StoredWeight

LEAST = 16
"""Scales that are not all equal by accident."""
TERNARY = 3
"""Codes of models that were trained with one scale."""


def find(weight: StoredWeight) -> Iterator[Fault]:
    """The value of all scales in 16 or 32 bits."""
    scales = weight.scales
    if scales is None or scales.itemsize == 1 or scales.numel() < LEAST:
        return
    least, greatest = weight.scale_range
    if least != greatest or (qtensor := weight.whole) is None:
        return
    if int(torch.bincount(qtensor.codes.flatten()).count_nonzero()) <= TERNARY:
        return
    count = scales.numel()
    yield Fault(weight.name, f"all {count:,} scales of `{weight.name}` are {least:g}")


CHECK = Check("weights", "all scales of a weight are equal", "quantize the linear again", find, 1)
