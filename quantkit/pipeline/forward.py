"""The forward of a block on one batch, from pause to pause."""

import torch
from greenlet import greenlet
from torch import nn

from quantkit.core.resources import Holding
from quantkit.grid.transfer import to_device
from quantkit.model.calls import BlockInputs


class Forward:
    """The forward of a block on one batch: it waits where it pauses, or is dropped and replayed."""

    def __init__(
        self, block: nn.Module, call: BlockInputs, device: torch.device, holding: Holding
    ) -> None:
        self.block, self.call, self.device, self.holding = block, call, device, holding
        self.waiting: greenlet | None = None

    def go_on(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """On to the next pause (None), or to the block's output.

        `hidden` is the block's input, both (sequences, length, width) in the model's dtype. The
        output lies on the device, and the input anywhere.
        """
        if self.waiting is None:
            forward = greenlet(self.call.run)
            output = forward.switch(self.block, to_device(hidden, self.device))
        else:
            forward = self.waiting
            output = forward.switch()
        if forward.dead:
            return output  # type: ignore[no-any-return]  # what `run` returns
        if self.holding.replayed:
            forward.throw()  # ends it, and what it holds
        else:
            self.waiting = forward
        return None
