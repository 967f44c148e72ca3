"""A weight file ends before its last tensor."""

from collections.abc import Iterator

from quantkit.checkpoint.survey import Survey
from quantkit.core.check import Check, Fault


def find(survey: Survey) -> Iterator[Fault]:
    """Each file that is too short for what its header states."""
    for shard, error in survey.broken.items():
        if error.what.endswith("is truncated"):
            yield Fault(shard, f"{error.what}: {error.why}")


CHECK = Check("files", "a weight file is cut off", "fetch the file again", find)
