"""A tensor of the source is nowhere in the folder."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.beside import Beside
from quantkit.model.declared import Declared
from quantkit.model.unclaimed import PASSED_OVER, passed_over


def find(beside: Beside) -> Iterator[Fault]:
    """Each tensor that the model's class lacks, or that it needs and the folder has no part of."""
    artifact, source = beside.artifact, beside.source
    kept = set(artifact.checkpoint.names) | set(artifact.files)
    quantized = {linear.path for linear in artifact.linears}
    for name in source.over:
        if name not in kept:
            yield Fault(name, f"`{name}` of the source is not in the folder")
    for name, (place, _) in source.dense.items():
        there = artifact.model.place(name)
        path = name.rpartition(".")[0]
        if place is not None and there is None and path not in quantized | set(artifact.refused):
            yield Fault(name, f"`{name}` of the source is not in the folder")
    for name in _drafts(source):
        if name not in kept:
            yield Fault(name, f"`{name}` of the source, of its draft layers, is not in the folder")


def _drafts(source: Declared) -> Iterator[str]:
    """Stored tensors that only serve to predict more tokens."""
    known = source.used | set(source.over)
    for name in source.files:
        if name not in known and not passed_over(name, PASSED_OVER):
            yield name


CHECK = Check(
    "source",
    "a tensor of the source was dropped",
    "copy it from the source",
    find,
    1,
)
