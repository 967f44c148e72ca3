"""A tensor has another shape than config and format give it."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.declared import Declared

BY_STATE = ("weight.quant_state", "weight.absmax", "weight.nested_absmax")
"""Parts of bitsandbytes whose sizes the stored quant state gives: decoding checks them."""


def find(declared: Declared) -> Iterator[Fault]:
    """Each part of a quantized linear, and each other tensor, of another shape."""
    for linear in declared.linears:
        for part, (_, shape) in linear.layout.items():
            name = linear.parts[part]
            if name is None or part.startswith(BY_STATE):
                continue
            found = declared.files[name].shape
            if found != shape:
                stated = f"{linear.scheme.label()} of {linear.facts.out_features} outputs and "
                stated += f"{linear.facts.in_features} inputs gives {shape}"
                turned = ": it is transposed" if found == shape[::-1] else ""
                yield Fault(name, f"`{name}` has shape {found}; {stated}{turned}")
    for name, (place, shape) in declared.dense.items():
        if place is None:
            continue
        found = place.shape(declared.checkpoint.names)
        if found != shape:
            stored = place.names[0]
            yield Fault(
                stored, f"`{name}` has shape {found} in the files and {shape} by config.json"
            )


CHECK = Check(
    "headers",
    "a tensor has another shape than config and format give it",
    "use the config.json that belongs to these weights, or write the tensor again",
    find,
    1,
)
