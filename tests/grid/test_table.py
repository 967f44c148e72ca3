import torch

from quantkit.grid.normal4 import NF4
from quantkit.grid.table import Table


def test_the_nearest_of_the_table() -> None:
    table = Table(tuple(NF4.tolist()))
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    rounded = table.round(values, torch.empty_like(values))
    nearest = (values[:, None] - NF4).abs().argmin(1)
    assert torch.equal(rounded, NF4[nearest])
    assert torch.equal(table.codes(rounded).long(), nearest)
    assert torch.equal(table.values(table.codes(rounded)), rounded)
    assert table.largest == 1.0
