"""A weight is another one than quantkit wrote, by the manifest's hash of its codes and scales."""

from collections.abc import Iterator

from quantkit.core.check import LAST, Check, Fault
from quantkit.model.stored_weights import StoredWeight


def find(weight: StoredWeight) -> Iterator[Fault]:
    """The weight, where it has a hash and decodes to another."""
    if weight.digest is not None and weight.is_wrong:
        yield Fault(
            weight.name,
            f"`{weight.name}` decodes to another weight than was written: its codes or scales "
            "changed",
        )


CHECK = Check(
    "weights",
    "codes or scales differ from the hash in quantkit.json",
    "fetch the file again, or quantize again",
    find,
    LAST,
)
