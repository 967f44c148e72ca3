"""The config ties the head to the embedding, and the files have a head of its own."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.model.declared import Declared, tied_head
from quantkit.model.stored_weights import pieces_of


def find(declared: Declared) -> Iterator[Fault]:
    """The head, where its values are others: some engines load it, and some the embedding."""
    names = tied_head(declared)
    if names is None or names[0] == names[1]:
        return
    head, embedding = names
    here, there = declared.files[head], declared.files[embedding]
    if (here.dtype, here.shape) != (there.dtype, there.shape):
        return
    checkpoint = declared.checkpoint
    both = zip(
        pieces_of(checkpoint, head, here), pieces_of(checkpoint, embedding, there), strict=True
    )
    if any(bool((mine != theirs).any()) for mine, theirs in both):
        yield Fault(
            head,
            f"`{head}` differs from `{embedding}`, and config.json ties the two: engines differ "
            "in which of them they use",
        )


CHECK = Check(
    "headers",
    "a head that the config ties to the embedding has other values",
    "set `tie_word_embeddings` to false, or remove the head",
    find,
)
