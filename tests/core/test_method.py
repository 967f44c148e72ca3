import torch

from quantkit.core.method import Solved
from quantkit.core.scheme import Scheme
from quantkit.grid.qtensor import QTensor


def solved(losses: torch.Tensor | None) -> Solved:
    codes = torch.zeros(2, 4, dtype=torch.uint8)
    return Solved(QTensor(codes, torch.ones(2, 1), None, Scheme("int", 4, None, True)), losses)


def test_the_relative_loss_is_that_of_all_rows_together() -> None:
    assert solved(torch.tensor([[1.0, 3.0], [4.0, 12.0]])).loss == 0.25
    assert solved(torch.tensor([[0.0, 0.0], [0.0, 0.0]])).loss == 0  # an input that is always zero
    assert solved(None).loss is None
