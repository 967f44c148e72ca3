"""A stored tensor that nothing in the config asks for; engines pass it over, or stop at it."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.declared import Declared


def find(declared: Declared) -> Iterator[Fault]:
    """Each such tensor, unless our own manifest says that the original has it."""
    ledger = declared.manifest.get("tensors")
    copied = ledger if isinstance(ledger, dict) else {}
    for name in declared.over:
        if copied.get(name) == "copied":
            continue
        info = declared.files[name]
        yield Fault(
            name,
            f"`{name}`, {info.dtype} {info.shape}, belongs to nothing that config.json describes",
        )


CHECK = Check(
    "headers",
    "a stored tensor belongs to nothing that config.json describes",
    "use the config.json that belongs to these weights, or remove the tensor",
    find,
    3,
)
