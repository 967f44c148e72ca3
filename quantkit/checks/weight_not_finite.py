"""A dense tensor has NaN or infinity."""

from collections.abc import Iterator

import torch

from quantkit.core.check import Check, Fault
from quantkit.model.stored_weights import DenseTensor


def find(tensor: DenseTensor) -> Iterator[Fault]:
    """How many of its numbers are none."""
    odd = total = 0
    for piece in tensor.pieces():
        if not piece.is_floating_point():
            return
        wide = piece if piece.itemsize > 1 else piece.to(torch.bfloat16)
        if wide.numel() and not bool(torch.isfinite(torch.stack(wide.aminmax())).all()):
            odd += int((~torch.isfinite(wide)).sum())
        total += piece.numel()
    if odd:
        yield Fault(
            tensor.name, f"`{tensor.name}` has NaN or infinity in {odd:,} of {total:,} values"
        )


CHECK = Check(
    "tensors", "a tensor that is not quantized has NaN or infinity", "write it again", find
)
