"""Batches of hidden states that wait between two blocks, in memory or elsewhere."""

from collections.abc import Callable, Iterable, MutableSequence

import torch

Batches = MutableSequence[torch.Tensor]
"""Tensors by place; one that does not wait in memory is read anew at each access."""
Room = Callable[[], Batches]
"""Makes an empty sequence where tensors wait; `list` keeps them in memory."""


def copied(tensors: Iterable[torch.Tensor], room: Room) -> Batches:
    """The tensors in a sequence of their own."""
    found = room()
    for tensor in tensors:
        found.append(tensor)
    return found
