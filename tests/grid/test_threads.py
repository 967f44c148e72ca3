from functools import partial

import pytest
import torch

from quantkit.grid.threads import in_parallel, one_thread


def test_threads_come_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    @one_thread()
    def fail() -> None:
        assert torch.get_num_threads() == 1
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError, match=r"^$"):
            fail()
        assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def add_product(out: torch.Tensor, x: torch.Tensor, index: int) -> None:
    out[index].addmm_(x.T, x)


def test_products_dealt_to_threads_have_the_bits_of_one() -> None:
    """MKL splits the sum of such a product among the threads that it may use."""
    before = torch.get_num_threads()
    x = torch.randn(2048, 192, generator=torch.Generator().manual_seed(0))
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        out = torch.zeros(7, 192, 192)
        in_parallel(partial(add_product, out, x), range(7))
        assert torch.get_num_threads() == threads
        found.append(out)
    torch.set_num_threads(before)
    assert all(torch.equal(out, found[0]) for out in found)
    assert (found[0] == found[0][:1]).all()


def test_what_fails_in_a_thread_fails_here() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        in_parallel(lambda i: 1 // i, range(3))
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
