"""A scale of 0 over codes that are not 0: the weights that they stood for are lost."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.stored_weights import StoredWeight


def find(weight: StoredWeight) -> Iterator[Fault]:
    """How many groups of integers have such a scale; decoding checks those of floats."""
    stored = weight.scales
    if stored is None or weight.scheme is None or weight.scheme.grid != "int":
        return
    least, greatest = weight.scale_range
    if least > 0 or greatest < 0 or not bool((stored == 0).any()):
        return
    if (qtensor := weight.whole) is None:
        return
    dead = qtensor.scales == 0
    groups = qtensor.codes.view(*qtensor.scales.shape, -1)[dead]
    middle = 1 << (qtensor.scheme.bits - 1)
    zeros = middle if qtensor.zeros is None else qtensor.zeros[dead][:, None]
    lost = int((groups != zeros).any(dim=1).sum())
    if lost:
        yield Fault(
            weight.name,
            f"{lost:,} of {dead.numel():,} scales of `{weight.name}` are 0 over codes that are not",
        )


CHECK = Check(
    "weights", "a scale is 0 over codes that are not", "quantize the linear again", find, 1
)
