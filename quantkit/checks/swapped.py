"""A weight is that of another linear."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.stored_weights import StoredWeight


def find(weight: StoredWeight) -> Iterator[Fault]:
    """The linear whose weight it is, by the manifest's hashes or the original."""
    qtensor = weight.qtensor
    if qtensor is None or not weight.is_wrong:
        return
    other = (weight.digests or {}).get(weight.found_digest or "")
    if other is None and weight.beside is not None:
        other = weight.beside.like(qtensor.dequantize())
    if other is not None and other != weight.name:
        yield Fault(weight.name, f"`{weight.name}` holds the weight of `{other}`")


CHECK = Check(
    "weights", "a weight is that of another linear", "write the two under their own names", find, 3
)
