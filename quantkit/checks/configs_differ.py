"""Two files state two quantizations; engines differ in which of them they read."""

from collections.abc import Iterator

from quantkit.checkpoint.files import read_json
from quantkit.checkpoint.quantization import quantization_block
from quantkit.core.check import Check, Fault
from quantkit.core.errors import QuantkitError
from quantkit.model.declared import Declared

BESIDE = ("quantize_config.json", "quant_config.json")
SAME = ("bits", "group_size", "sym", "desc_act", "checkpoint_format", "zero_point")


def find(declared: Declared) -> Iterator[Fault]:
    """The old files that AutoGPTQ and AutoAWQ wrote, where they contradict config.json."""
    block = quantization_block(declared.checkpoint.config) or {}
    for name in BESIDE:
        path = declared.checkpoint.folder / name
        if not path.is_file():
            continue
        try:
            stated = read_json(path)
        except QuantkitError as error:
            yield Fault(name, f"`{name}` cannot be read: {error.why or error.what}")
            continue
        stated = stated if isinstance(stated, dict) else {}
        apart = [k for k in SAME if k in stated and k in block and stated[k] != block[k]]
        if apart:
            both = ", ".join(f"{k} is {stated[k]!r:.40} and {block[k]!r:.40}" for k in apart)
            yield Fault(name, f"`{name}` and config.json differ: {both}")


CHECK = Check(
    "headers",
    "two files state two quantizations",
    "remove the file beside config.json, or make them equal",
    find,
)
