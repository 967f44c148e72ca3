"""Calls of blocks that are kept: streams of hidden states, and items that blocks hand on."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from quantkit.model.calls import BlockInputs, Slot, beside, stacked

SIZES = st.integers(1, 4)


@given(streams=SIZES, sequences=SIZES, length=SIZES, width=SIZES)
def test_streams_lie_beside_each_other_and_come_back(
    streams: int, sequences: int, length: int, width: int
) -> None:
    hidden = torch.rand(streams, sequences, length, width)
    found = beside(hidden, streams)
    assert found.shape == (sequences, length, streams * width)
    assert torch.equal(stacked(found, streams), hidden)


class Adds(nn.Module):
    """Adds what the block before returned, and returns a count of the blocks so far."""

    def forward(
        self, hidden: torch.Tensor, count: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum, and the count (1,)."""
        count = torch.zeros(1) if count is None else count
        return hidden + count, count + 1


def test_a_block_may_run_again_on_what_the_one_before_it_returned() -> None:
    even, odd = Slot(0), Slot(1)
    even.used = odd.used = True
    calls = [
        BlockInputs((None,), {}, returns=(even,)),
        BlockInputs((even,), {}, returns=(odd,)),
        BlockInputs((), {"count": odd}, returns=(even,)),
    ]
    hidden = torch.zeros(1, 1, 1)
    for call in calls:
        outputs = [call.run(Adds(), hidden) for _ in range(2)]
        assert torch.equal(*outputs)
        hidden = outputs[0]
    assert hidden.item() == 0 + 1 + 2


def test_what_no_block_reads_is_not_kept() -> None:
    slot = Slot(0)
    BlockInputs((None,), {}, returns=(slot,)).run(Adds(), torch.zeros(1, 1, 1))
    assert slot.value is None
