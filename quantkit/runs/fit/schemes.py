"""The schemes that `fit` chooses from, checked before torch is loaded."""

from collections.abc import Sequence

from quantkit.core import registry
from quantkit.core.errors import InputError
from quantkit.core.method import Method
from quantkit.core.scheme import Scheme

METHOD = "gptq"


def schemes_of(bits: Sequence[int], group_sizes: Sequence[int | None]) -> tuple[Scheme, ...]:
    """Every width with every group size; group size None is a whole channel.

    Raises:
        InputError: no width or group size, or a width that the method does not support.
    """
    method: Method = registry.load("methods", METHOD, "METHOD")
    legal = sorted(width for grid, width in method.grids if grid == "int")
    if not bits or not group_sizes or set(bits) - set(legal):
        given = ",".join(map(str, bits)) or "none"
        raise InputError(
            f"--bits {given} is not supported", hint=f"--bits {','.join(map(str, legal))}"
        )
    return tuple(Scheme("int", width, size) for width in bits for size in group_sizes)
