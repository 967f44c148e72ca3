"""A decoded weight is further from the original than its bits explain."""

from collections.abc import Iterator

from quantkit.core.check import LAST, Check, Fault
from quantkit.core.scheme import Scheme
from quantkit.model.stored_weights import WRONG, StoredWeight

DECODED = {1: Scheme("fp8", 8, None), 2: Scheme("mxfp4", 4, 32)}
"""What weights in floats without a known layout are rounded like, by codes a byte."""


def find(weight: StoredWeight) -> Iterator[Fault]:
    """How far it is off."""
    if weight.beside is None:
        return
    if weight.qtensor is not None:
        said = weight.beside.near(weight.qtensor.dequantize(), weight.qtensor.scheme, WRONG)
    elif weight.dense is not None and weight.dense.ndim == 2:
        codes = next(iter(weight.tensors.values()))
        count = weight.dense.numel() // max(1, codes.numel())
        said = weight.beside.near(weight.dense.float(), DECODED.get(count), WRONG)
    else:
        return
    if said is not None:
        yield Fault(weight.name, f"`{weight.name}` {said}")


CHECK = Check(
    "weights",
    "a weight is further from the original than its bits explain",
    "quantize the linear again, from the same source",
    find,
    LAST,
)
