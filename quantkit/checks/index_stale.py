"""The index names a tensor that lies elsewhere, or nowhere."""

from collections.abc import Iterator

from quantkit.checkpoint.filenames import INDEX
from quantkit.checkpoint.survey import Survey
from quantkit.core.check import Check, Fault


def find(survey: Survey) -> Iterator[Fault]:
    """Each tensor that is not in the shard that the index states, where that shard can be read."""
    for name, shard in survey.index.items():
        if shard in survey.shards and name not in survey.shards[shard]:
            home = survey.home(name)
            where = f"it is in `{home}`" if home else "no file contains it"
            said = f"`{INDEX}` states that `{name[:200]}` is in `{shard}`: {where}"
            yield Fault(name, said, explains=(INDEX,))


CHECK = Check(
    "files",
    "the index names a tensor that lies in another file, or in none",
    "fetch the index and the files again; they are of two versions",
    find,
    rank=1,
)
