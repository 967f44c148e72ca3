"""The output head is not in the files, and the config does not tie it to the embedding."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.declared import Declared


def find(declared: Declared) -> Iterator[Fault]:
    """The head, where the model loads one and the files have none."""
    name = f"{declared.model.skeleton.head}.weight"
    place, _ = declared.dense.get(name, (None, ()))
    if name in declared.dense and place is None:
        yield Fault(
            name,
            f"`{name}` is missing, and config.json does not tie it to the embedding: "
            "engines make it up at random",
        )


CHECK = Check(
    "headers",
    "the output head was dropped, and the config does not tie it to the embedding",
    "set `tie_word_embeddings` if the original does, or write the head again",
    find,
)
