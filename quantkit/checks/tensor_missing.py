"""A tensor that the model needs is not in the files."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.declared import Declared


def find(declared: Declared) -> Iterator[Fault]:
    """Each part of a quantized linear, and each other tensor, that is not there."""
    for linear in declared.linears:
        gone = [part for part, name in linear.parts.items() if name is None]
        if len(gone) == len(linear.parts):
            yield Fault(linear.stored, f"no tensor of `{linear.stored}` is in the files")
            continue
        for part in gone:
            stated = f"{linear.scheme.label()} needs it"
            yield Fault(linear.name(part), f"`{linear.name(part)}` is missing: {stated}")
    for name, (place, shape) in declared.dense.items():
        if place is None:
            yield Fault(name, f"`{name}`, {shape}, is missing: the model in config.json needs it")


CHECK = Check(
    "headers", "a tensor that the model needs is missing", "fetch or write the files again", find, 2
)
