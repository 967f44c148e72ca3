"""What goes from block to block: the calibration's hidden states, from which a run can go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from quantkit.grid.transfer import to_device
from quantkit.model.batches import Batches
from quantkit.model.calls import BlockInputs, Slot

Calls = list[list[BlockInputs]]


@dataclass(frozen=True)
class Passed:
    """Hidden states after a block, and the further items of its calls, until the next one runs.

    `shared`: the codes that later blocks share with finished ones.
    """

    batches: Batches
    originals: Batches
    items: Sequence[torch.Tensor | None]
    shared: Sequence[torch.Tensor | None] = ()

    def __iter__(self) -> Iterator[torch.Tensor | None]:
        yield from self.shared
        yield from self.batches
        yield from self.originals
        yield from self.items


@dataclass
class Chain:
    """Batches of hidden states (sequences, length, width) before a block, and each one's calls.

    `originals`: those of the original model where it runs beside, with calls of their own. All are
    empty without calibration.
    """

    batches: Batches = field(default_factory=list)
    calls: Calls = field(default_factory=list)
    originals: Batches = field(default_factory=list)
    others: Calls = field(default_factory=list)

    def after(self, index: int) -> Passed | None:
        """What the block after `index` reads, in an order of its own; None: not only tensors."""
        items = []
        for slot in self._slots(index):
            if not isinstance(slot.value, torch.Tensor | None):
                return None
            items.append(slot.value)
        return Passed(self.batches, self.originals, items)

    def restore(
        self, index: int, kept: Iterable[torch.Tensor | None], device: torch.device
    ) -> None:
        """Set what `after` gave for block `index`; hidden states wait where they wait now."""
        waiting = iter(kept)
        for batches in (self.batches, self.originals):
            for i, hidden in enumerate(batches):
                value = next(waiting)
                assert value is not None
                batches[i] = to_device(value, hidden.device)
        for slot, value in zip(self._slots(index), waiting, strict=True):
            slot.value = None if value is None else to_device(value, device)

    def _slots(self, index: int) -> Iterator[Slot]:
        for call in (*self.calls, *self.others):
            yield from call[index].returns
