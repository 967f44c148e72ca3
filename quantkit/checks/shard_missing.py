"""A shard that the index names is not in the folder."""

from collections.abc import Iterator

from quantkit.checkpoint.filenames import INDEX
from quantkit.checkpoint.survey import Survey
from quantkit.core.check import Check, Fault


def find(survey: Survey) -> Iterator[Fault]:
    """Each shard that is missing, with the number of tensors that are missing with it."""
    for shard in survey.missing:
        gone = sum(home == shard for home in survey.index.values())
        tensors = f", with {gone} tensors by `{INDEX}`" if gone else ""
        yield Fault(shard, f"`{shard}` is not in the folder{tensors}")


CHECK = Check("files", "a weight file is not there", "fetch the file again", find)
