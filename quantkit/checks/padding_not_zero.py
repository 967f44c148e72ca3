"""Bits after the last code of a packed row: every writer leaves them 0, so something changed."""

from collections.abc import Iterator

import torch

from quantkit.core.check import Check, Fault
from quantkit.model.stored_weights import StoredWeight

WORD = 32


def find(weight: StoredWeight) -> Iterator[Fault]:
    """Each packed part with such bits; other formats fill whole words."""
    scheme, facts = weight.scheme, weight.facts
    if weight.format != "compressed-tensors" or scheme is None or facts is None:
        return
    packed = (("weight_packed", facts.in_features, 1), ("weight_zero_point", facts.out_features, 0))
    for part, count, dim in packed:
        words, used = weight.tensors.get(part), count * scheme.bits % WORD
        if words is None or words.dtype is not torch.int32 or not used:
            continue
        odd = int((words.select(dim, -1) >> used != 0).sum())
        if odd:
            name = weight.names[part]
            yield Fault(name, f"`{name}` has bits after the last code in {odd:,} words")


CHECK = Check(
    "weights",
    "bits after the last code of a packed row are not 0",
    "fetch the file again, or quantize the linear again",
    find,
)
