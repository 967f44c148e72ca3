import pytest
import torch

from quantkit.core import registry
from quantkit.core.grid import Grid
from quantkit.core.method import Method, Solved
from quantkit.core.scheme import Scheme
from quantkit.grid.qtensor import QTensor


def solved(losses: torch.Tensor | None) -> Solved:
    codes = torch.zeros(2, 4, dtype=torch.uint8)
    return Solved(QTensor(codes, torch.ones(2, 1), None, Scheme("int", 4, None, True)), losses)


def test_the_relative_loss_is_that_of_all_rows_together() -> None:
    assert solved(torch.tensor([[1.0, 3.0], [4.0, 12.0]])).loss == 0.25
    assert solved(torch.tensor([[0.0, 0.0], [0.0, 0.0]])).loss == 0  # an input that is always zero
    assert solved(None).loss is None


@pytest.mark.parametrize("name", ["rtn", "gptq", "awq"])
def test_any_grid_is_each_without_a_method_of_its_own(name: str) -> None:
    method: Method = registry.load("methods", name, "METHOD")
    grids: list[Grid] = [registry.load("grids", each, "GRID") for each in registry.names("grids")]
    expected = {(grid.name, bits) for grid in grids for bits in grid.bits if not grid.method}
    assert set(method.pairs) == expected
    assert method.pairs[0] == (Scheme.grid, Scheme.bits)
    assert ("nf4", 4) not in method.pairs
    assert registry.load("methods", "nf4", "METHOD").pairs == (("nf4", 4),)
