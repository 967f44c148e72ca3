"""A linear is stored in codes, and the config calls it dense, or says nothing of a quantization."""

from collections.abc import Iterator

from quantkit.checkpoint.quantization import quantization_block
from quantkit.core.check import Check, Fault
from quantkit.model.declared import Declared

CODES = ("qweight", "weight_packed", "weight_scale", "weight_scale_inv", "SCB", "scales")
"""Names of tensors that only quantized linears have."""


def find(declared: Declared) -> Iterator[Fault]:
    """One fault for the whole folder where no block is there, else one a linear."""
    missing = {name for name, (place, _) in declared.dense.items() if place is None}
    coded = {
        module
        for module, _, part in (name.rpartition(".") for name in declared.over)
        if part in CODES and f"{module}.weight" in missing | set(declared.files)
    }
    if not coded:
        return
    if quantization_block(declared.checkpoint.config) is None:
        names = tuple(sorted(coded))
        yield Fault(
            "config.json",
            f"config.json has no `quantization_config`, and {len(names)} linears are stored in "
            f"codes, first `{names[0]}`: engines load random weights or stop",
            "add the `quantization_config` that the folder was written with",
            names,
        )
        return
    for module in sorted(coded):
        yield Fault(module, f"`{module}` is stored in codes, and config.json calls it dense")


CHECK = Check(
    "headers",
    "a linear is stored in codes, and the config does not say so",
    "take it out of the list of linears that are not quantized",
    find,
)
