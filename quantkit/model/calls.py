"""How a model calls its blocks, kept so that each can be run again by itself."""

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from quantkit.core.errors import RefusedError


class Slot:
    """A further item that blocks return beside hidden states, for the next block to read.

    Blocks take turns with two slots for each item, so that one may run again on what it was given:
    the block at `turn` 0 or 1 writes, the one after it reads. `used`: some block reads it.
    """

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.used = False
        self.value: object = None


@dataclass(frozen=True)
class BlockInputs:
    """How the model calls one block: every argument but the hidden states, which come first.

    Where `streams` is not 0, the block takes so many hidden states at once, stacked before the
    sequences; elsewhere they are one beside the other, so that a sequence is always an item.
    Arguments that are a `Slot` stand for what the block before returned; `returns` are the slots of
    this block's own items.
    """

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    streams: int = 0
    returns: tuple[Slot, ...] = ()

    def run(self, block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """The block's output for `hidden`, both (sequences, length, width) of the block's dtype.

        Raises:
            RefusedError: its code does not run in that dtype.
        """
        arguments = map(_filled, self.arguments)
        keywords = {key: _filled(value) for key, value in self.keywords.items()}
        try:
            out = block(stacked(hidden, self.streams), *arguments, **keywords)
        except RuntimeError as error:
            if "dtype" not in str(error):
                raise
            raise RefusedError(  # some code of transformers mixes dtypes by itself
                f"`{type(block).__name__}` cannot be computed in {hidden.dtype}",
                why=str(error),
                hint="store the model in float32 first",
            ) from error
        if isinstance(out, torch.Tensor):
            return beside(out, self.streams)
        for slot, item in zip(self.returns, out[1:], strict=False):
            slot.value = item if slot.used else None
        return beside(out[0], self.streams)


def apart(calls: list[BlockInputs]) -> list[BlockInputs]:
    """The same calls of a model's blocks with slots of their own: a run beside the first one."""
    slots: dict[int, Slot] = {}

    def own(argument: Any) -> Any:
        if not isinstance(argument, Slot):
            return argument
        return slots.setdefault(id(argument), copy(argument))

    return [
        replace(
            call,
            arguments=tuple(map(own, call.arguments)),
            keywords={key: own(value) for key, value in call.keywords.items()},
            returns=tuple(map(own, call.returns)),
        )
        for call in calls
    ]


def _filled(argument: Any) -> Any:
    return argument.value if isinstance(argument, Slot) else argument


def stacked(hidden: torch.Tensor, streams: int) -> torch.Tensor:
    """(sequences, length, streams x width) -> (streams, sequences, length, width)."""
    if not streams:
        return hidden
    return hidden.view(*hidden.shape[:2], streams, -1).movedim(2, 0).contiguous()


def beside(hidden: torch.Tensor, streams: int) -> torch.Tensor:
    """(streams, sequences, length, width) -> (sequences, length, streams x width)."""
    return hidden.movedim(0, 2).flatten(2) if streams else hidden
