"""A tensor lies in two files; transformers may load the one that the index does not name."""

from collections.abc import Iterator

from quantkit.checkpoint.survey import Survey
from quantkit.core.check import Check, Fault


def find(survey: Survey) -> Iterator[Fault]:
    """Each tensor that was seen in a file before."""
    homes: dict[str, str] = {}
    for shard, tensors in survey.shards.items():
        for name in tensors:
            if name in homes:
                yield Fault(name, f"`{name}` is both in `{homes[name]}` and in `{shard}`")
            homes.setdefault(name, shard)


CHECK = Check(
    "files", "a tensor is in two files", "fetch the files again; they are of two versions", find
)
