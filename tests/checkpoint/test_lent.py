from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quantkit.checkpoint import lent
from quantkit.checkpoint.lent import Loan, Memory
from quantkit.checkpoint.reader import open_checkpoint


def test_memory_is_lent_again_and_never_twice_at_a_time() -> None:
    memory = Memory()
    first, second = Loan(memory), Loan(memory)
    one, other = first(1000), second(1000)
    one.fill_(1)
    other.fill_(2)
    assert set(one.tolist()) == {1}
    first.end()
    again = Loan(memory)(900)
    assert again.data_ptr() == one.data_ptr()
    assert len(again) == 900
    assert Loan(memory)(900).data_ptr() not in (one.data_ptr(), other.data_ptr())


def test_a_small_tensor_does_not_take_a_large_piece() -> None:
    memory = Memory()
    loan = Loan(memory)
    large = loan(10_000)
    loan.end()
    assert Loan(memory)(10).data_ptr() != large.data_ptr()


def test_what_lies_unused_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent, "MOST", 2500)
    memory = Memory()
    loan = Loan(memory)
    pieces = [loan(1000) for _ in range(3)]
    loan.end()
    later = Loan(memory)
    found = {later(1000).data_ptr() for _ in range(2)}
    assert found == {piece.data_ptr() for piece in pieces[1:]}


def test_tensors_of_a_checkpoint_lie_in_it(tiny_checkpoint: Callable[..., Path]) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint())
    loan = Loan(Memory())
    lending = checkpoint.lending(loan)
    for name in checkpoint.names:
        found = lending.tensor(name)
        assert torch.equal(found, checkpoint.tensor(name))
        pointer = found.data_ptr()
        loan.end()
        assert lending.tensor(name).data_ptr() == pointer
        loan.end()
