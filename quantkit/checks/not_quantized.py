"""The config calls a linear of a block quantized, and it is stored as floats."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.declared import Declared

ROUTERS = ("gate", "router", "shared_expert_gate")
"""Linears that no tool quantizes, and that some forget to exclude."""


def find(declared: Declared) -> Iterator[Fault]:
    """Each such linear; engines that follow the config look for its codes in vain."""
    for stored in declared.plain:
        if not any(part.isdigit() for part in stored.split(".")):
            continue  # a head, which some tools forget to exclude
        if stored.rpartition(".")[2] in ROUTERS:
            continue
        yield Fault(stored, f"`{stored}` is stored as floats, and config.json calls it quantized")


CHECK = Check(
    "headers",
    "a linear is stored as floats, and the config calls it quantized",
    "quantize it, or exclude it in the quantization config",
    find,
)
