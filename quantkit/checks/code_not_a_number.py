"""A code in 8-bit floats stands for NaN."""

from collections.abc import Iterator

import torch

from quantkit.core.check import Check, Fault
from quantkit.core.errors import InputError
from quantkit.grid.floats import require_numbers
from quantkit.model.stored_weights import StoredWeight

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def find(weight: StoredWeight) -> Iterator[Fault]:
    """The codes, where one of them is NaN or infinity."""
    for part in ("weight", "codes"):
        tensor = weight.tensors.get(part)
        if tensor is None or tensor.dtype not in FP8:
            continue
        name = weight.names[part]
        try:
            require_numbers(tensor, name)
        except InputError:
            yield Fault(name, f"`{name}` has codes that stand for NaN or infinity")


CHECK = Check("weights", "a code in 8-bit floats is NaN", "quantize the linear again", find)
