import torch

from quantkit.core.scheme import NESTED_SIZE
from quantkit.grid.dynamic8 import dynamic_book, nested_scales
from quantkit.grid.qtensor import DoubleQuant


def test_the_book_is_sorted_and_all_but_symmetric() -> None:
    book = dynamic_book()
    assert book.shape == (256,)
    assert torch.equal(book, book.sort().values)
    assert book[-1] == 1
    inner = book[book != 1]
    assert torch.equal(inner, -inner.flip(0))  # bitsandbytes has 1 but not -1


def test_its_smallest_and_largest_steps() -> None:
    book = dynamic_book()
    positive = book[(book > 0) & (book < 1)]
    assert positive.numel() == sum(2**i for i in range(7))
    assert positive[0] == torch.tensor(0.55) * 1e-6
    assert torch.allclose(positive[-1], torch.tensor(1 - 0.9 / 128))


def test_nested_scales_use_one_absmax_for_256() -> None:
    codes = torch.full((NESTED_SIZE + 2,), 255, dtype=torch.uint8)
    nested = DoubleQuant(codes, torch.tensor([2.0, 3.0]), torch.tensor(0.5))
    scales = nested_scales(nested)
    assert scales.tolist() == [2.5] * NESTED_SIZE + [3.5] * 2
