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


def test_codes_start_where_it_says() -> None:
    table = Table((-1.0, 0.0, 1.0), first=1)
    values = torch.tensor([-7.0, -0.6, -0.4, 0.0, 0.4, 0.6, 2.0])
    assert table.codes(values).tolist() == [1, 1, 2, 2, 2, 3, 3]
    assert table.round(values, torch.empty_like(values)).tolist() == [-1, -1, 0, 0, 0, 1, 1]
