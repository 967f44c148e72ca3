"""The quantization config does not say in which scheme a linear is."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.core.errors import InputError
from quantkit.model.declared import Declared


def find(declared: Declared) -> Iterator[Fault]:
    """One fault for each reason; schemes that are only not supported are no fault."""
    found: dict[str, list[str]] = {}
    for path, error in declared.refused.items():
        if isinstance(error, InputError):
            sentence = f"{error.what}: {error.why}" if error.why else error.what
            found.setdefault(sentence.replace(path, "*"), []).append(path)
    for sentence, paths in found.items():
        here = sentence.replace("*", paths[0])
        yield Fault("config.json", here, explains=tuple(paths))


CHECK = Check(
    "headers",
    "the quantization config cannot be read",
    "use the config.json that belongs to these weights",
    find,
)
