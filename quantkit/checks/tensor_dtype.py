"""A tensor has another dtype than its format or the model has."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.declared import Declared

FLOATS = ("F32", "F16", "BF16", "F64")
WHOLE = ("I64", "I32")
"""Dtypes in which tools write the shape of a packed weight."""


def find(declared: Declared) -> Iterator[Fault]:
    """Each part of a quantized linear, and each other tensor, of another kind of number."""
    for linear in declared.linears:
        for part, (dtype, _) in linear.layout.items():
            name = linear.parts[part]
            found = declared.files[name].dtype if name else dtype
            same = found == dtype or {found, dtype} <= set(FLOATS)
            if not same and (part != "weight_shape" or found not in WHOLE):
                yield Fault(str(name), f"`{name}` is {found}, and {dtype} in its format")
    floats = {
        name
        for name, tensor in declared.model.skeleton.model.state_dict(keep_vars=True).items()
        if tensor.is_floating_point()
    }
    coded = declared.coding.tensors if declared.coding else {}
    for name in floats & declared.dense.keys():
        place = declared.dense[name][0]
        stored = place.names[0] if place else None
        if stored is None or stored in coded:
            continue
        found = declared.checkpoint.names[stored].dtype
        if found not in FLOATS:
            yield Fault(
                stored,
                f"`{stored}` is {found}, and a float in the model: config.json does not say how "
                "it is quantized",
            )


CHECK = Check(
    "headers",
    "a tensor has another dtype than its format or the model has",
    "write it again in the dtype of its format",
    find,
    1,
)
