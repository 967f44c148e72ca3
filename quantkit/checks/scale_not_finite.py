"""A scale of a quantized weight is no number."""

from collections.abc import Iterator
from math import isfinite

import torch

from quantkit.core.check import Check, Fault
from quantkit.core.errors import InputError
from quantkit.grid.floats import require_numbers
from quantkit.model.stored_weights import StoredWeight

CODES = ("weight", "weight_packed", "qweight", "codes")
EXPONENTS = ("mxfp4", "mxfp8")


def find(weight: StoredWeight) -> Iterator[Fault]:
    """Each part in floats, the codes aside, with NaN or infinity."""
    for part, tensor in weight.tensors.items():
        grid = weight.scheme.grid if weight.scheme else ""
        exponents = tensor.dtype is torch.uint8 and part == "weight_scale" and grid in EXPONENTS
        if part in CODES or not (tensor.is_floating_point() or exponents):
            continue
        if tensor is weight.scales and all(map(isfinite, weight.scale_range)):
            continue  # the usual case, in one pass
        try:
            require_numbers(tensor, weight.names[part])
        except InputError:
            name = weight.names[part]
            yield Fault(name, f"`{name}` has NaN or infinity")


CHECK = Check("weights", "a scale has NaN or infinity", "quantize the linear again", find)
