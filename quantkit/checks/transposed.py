"""A square weight is transposed, which no shape shows."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.stored_weights import SUSPECT, StoredWeight


def find(weight: StoredWeight) -> Iterator[Fault]:
    """The weight, where its transpose is near the original."""
    qtensor = weight.qtensor
    if qtensor is None or weight.beside is None or not weight.is_wrong:
        return
    rows, columns = qtensor.codes.shape
    turned = qtensor.dequantize().T.contiguous()
    if rows == columns and weight.beside.near(turned, qtensor.scheme, SUSPECT) is None:
        yield Fault(weight.name, f"`{weight.name}` is the transpose of the original weight")


CHECK = Check("weights", "a square weight is transposed", "transpose it back", find, 3)
