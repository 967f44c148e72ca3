"""quantkit.json is there and is no manifest: the hashes of the weights are lost."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.core.manifest import FILE_NAME
from quantkit.model.declared import Declared


def find(declared: Declared) -> Iterator[Fault]:
    """The file, where nothing can be read of it."""
    if (declared.checkpoint.folder / FILE_NAME).is_file() and not declared.manifest:
        yield Fault(FILE_NAME, f"`{FILE_NAME}` is not a manifest of quantkit")


CHECK = Check("headers", "quantkit.json is no manifest", "fetch the file again", find)
