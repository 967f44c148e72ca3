"""Config and tensors do not describe one model."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.core.errors import InputError


def find(error: InputError) -> Iterator[Fault]:
    """What was said when the folder was opened as a model."""
    yield Fault("config.json", f"{error.what}: {error.why}" if error.why else error.what)


CHECK = Check(
    "opening",
    "config.json describes no model that the tensors could be of",
    "use the config.json that belongs to these weights",
    find,
)
