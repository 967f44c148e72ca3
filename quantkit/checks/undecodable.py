"""The format cannot decode a weight, for a reason that no other check names."""

from collections.abc import Iterator

from quantkit.core.check import LAST, Check, Fault
from quantkit.core.errors import InputError
from quantkit.model.stored_weights import StoredWeight


def find(weight: StoredWeight) -> Iterator[Fault]:
    """What decoding says; what it refuses only because it is not supported is no fault."""
    error = weight.error
    if isinstance(error, InputError):
        yield Fault(weight.name, f"{error.what}: {error.why}" if error.why else error.what)


CHECK = Check("weights", "a weight cannot be decoded", "quantize the linear again", find, LAST)
