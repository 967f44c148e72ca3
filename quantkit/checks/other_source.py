"""The source is not the model that the folder was made of, or all of it was rotated."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.beside import Beside

FAR = 0.5
"""Squared relative difference of an embedding that no rounding gives."""


def find(beside: Beside) -> Iterator[Fault]:
    """Where the embeddings have other shapes, or hardly a number in common."""
    model = beside.artifact.model.skeleton.model
    embedding = model.get_input_embeddings()
    name = next((n for n, m in model.named_modules() if m is embedding), "")
    mine, theirs = (each.model.place(f"{name}.weight") for each in (beside.artifact, beside.source))
    if mine is None or theirs is None or not (mine.is_plain and theirs.is_plain):
        return
    stored = mine.names[0]
    here = beside.artifact.checkpoint.names[stored]
    there = beside.source.checkpoint.names[theirs.names[0]]
    if here.shape != there.shape:
        yield Fault("source", f"the source's `{stored}` has shape {there.shape}, not {here.shape}")
        return
    rows = slice(0, min(here.shape[0], 4096))
    a = beside.artifact.checkpoint.tensor(stored, rows).double()
    b = beside.source.checkpoint.tensor(theirs.names[0], rows).double()
    if float((a - b).square().sum()) > FAR * float(b.square().sum()):
        yield Fault("source", f"`{stored}` has nothing in common with the source's")


CHECK = Check(
    "source",
    "the source is another model, or the folder holds it rotated",
    "the --source that the folder was made of",
    find,
)
