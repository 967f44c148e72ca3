"""A weight file's header is not valid."""

from collections.abc import Iterator

from quantkit.checkpoint.survey import Survey
from quantkit.core.check import Check, Fault


def find(survey: Survey) -> Iterator[Fault]:
    """Each file whose header cannot be read."""
    for shard, error in survey.broken.items():
        yield Fault(shard, f"{error.what}: {error.why}" if error.why else error.what)


CHECK = Check(
    "files", "a weight file is not valid safetensors", "fetch the file again", find, rank=1
)
