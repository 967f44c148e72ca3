"""A matrix whose values are all the same."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.stored_weights import DenseTensor

LEAST = 64
"""Values of a matrix that cannot all be equal by accident."""


def find(tensor: DenseTensor) -> Iterator[Fault]:
    """The value that fills a matrix; vectors, such as those of norms, may be constant."""
    info = tensor.info
    if len(info.shape) < 2 or info.nbytes < LEAST or tensor.kind != "weight":
        return
    value = tensor.seen.only
    if value is not None:
        yield Fault(tensor.name, f"all values of `{tensor.name}`, {info.shape}, are {value:g}")


CHECK = Check(
    "tensors", "all values of a matrix that is not quantized are equal", "write it again", find, 1
)
