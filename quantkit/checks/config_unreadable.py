"""config.json or the index is missing or is not JSON."""

from collections.abc import Iterator

from quantkit.checkpoint.survey import Survey
from quantkit.core.check import Check, Fault


def find(survey: Survey) -> Iterator[Fault]:
    """Each of the two that cannot be read."""
    for name, error in survey.faults.items():
        yield Fault(name, f"`{name}` cannot be read: {error.why or error.what}")


CHECK = Check("files", "config.json or the index cannot be read", "fetch the file again", find)
