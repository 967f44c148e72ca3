"""A weight file has a tensor that the index does not name: not every engine loads it."""

from collections.abc import Iterator

from quantkit.checkpoint.filenames import INDEX
from quantkit.checkpoint.survey import Survey
from quantkit.core.check import Check, Fault


def find(survey: Survey) -> Iterator[Fault]:
    """Files and tensors that lie in the folder and not in the index."""
    if not survey.index:
        return
    named = set(survey.index.values())
    for shard, tensors in survey.shards.items():
        if shard not in named:
            yield Fault(shard, f"`{shard}` with {len(tensors)} tensors is not in `{INDEX}`")
            continue
        for name in tensors:
            if name not in survey.index:
                said = f"`{name}` is in `{shard}` and not in `{INDEX}`"
                yield Fault(name, said, explains=(INDEX,))


CHECK = Check(
    "files",
    "a tensor or file of weights is not in the index",
    "remove it, or write the index again",
    find,
    rank=1,
)
