import pytest
import torch

from quantkit.core.method import Solved
from quantkit.core.scheme import Scheme
from quantkit.grid.qtensor import QTensor
from quantkit.grid.rows import Piece, cut, joined, rows_of


@pytest.mark.parametrize("size", [1, 3, 5, 16, 100])
def test_units_hold_every_row_once_and_in_order(size: int) -> None:
    counts = [5, 1, 16, 3]
    units = cut(counts, size)
    rows = [(p.weight, row) for unit in units for p in unit for row in range(*p.rows.indices(99))]
    assert rows == [(weight, row) for weight, count in enumerate(counts) for row in range(count)]
    lengths = [sum(p.rows.stop - p.rows.start for p in unit) for unit in units]
    assert set(lengths[:-1]) <= {size}
    assert 0 < lengths[-1] <= size


def test_a_unit_goes_over_the_end_of_a_weight() -> None:
    assert cut([2, 3], 4) == [
        [Piece(0, slice(0, 2)), Piece(1, slice(0, 2))],
        [Piece(1, slice(2, 3))],
    ]


@pytest.mark.parametrize("symmetric", [True, False])
def test_what_was_cut_is_joined_again(symmetric: bool) -> None:
    codes = torch.arange(40, dtype=torch.uint8).view(10, 4)
    scales = torch.rand(10, 2)
    zeros = None if symmetric else torch.arange(20, dtype=torch.uint8).view(10, 2)
    whole = Solved(
        QTensor(codes, scales, zeros, Scheme("int", 8, 2, symmetric)), torch.rand(2, 10), ("n",)
    )
    again = joined([rows_of(whole, slice(0, 3)), rows_of(whole, slice(3, 10))])
    assert torch.equal(again.qtensor.dequantize(), whole.qtensor.dequantize())
    assert again.losses is not None
    assert whole.losses is not None
    assert torch.equal(again.losses, whole.losses)
    assert again.notes == whole.notes
