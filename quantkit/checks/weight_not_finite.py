"""A dense tensor has NaN or infinity."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.stored_weights import DenseTensor


def find(tensor: DenseTensor) -> Iterator[Fault]:
    """How many of its numbers are none."""
    seen = tensor.seen
    if seen.odd:
        yield Fault(
            tensor.name,
            f"`{tensor.name}` has NaN or infinity in {seen.odd:,} of {seen.total:,} values",
        )


CHECK = Check(
    "tensors", "a tensor that is not quantized has NaN or infinity", "write it again", find
)
