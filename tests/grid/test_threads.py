import time
from functools import partial

import pytest
import torch

from quantkit.grid.threads import one_thread, side_by_side


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


@pytest.mark.parametrize("inner", [64, 2048])
def test_products_side_by_side_are_those_of_one_thread(inner: int) -> None:
    draw = torch.Generator().manual_seed(0)
    left = torch.randn(inner, 5 * 64, generator=draw)
    right = torch.randn(inner, 192, generator=draw)
    found = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        sums = torch.zeros(5 * 64, 192)
        side_by_side(
            partial(sums[i : i + 64].addmm_, left[:, i : i + 64].T, right)
            for i in range(0, 320, 64)
        )
        assert torch.get_num_threads() == threads
        found.append(sums)
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    torch.testing.assert_close(found[0], left.T @ right, rtol=1e-4, atol=1e-3)


def test_what_fails_is_raised_when_nothing_runs_any_more() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    done: list[int] = []

    def slow() -> None:
        time.sleep(0.2)
        done.append(1)

    with pytest.raises(ZeroDivisionError):
        side_by_side([lambda: 1 // 0, slow])
    found = list(done)
    time.sleep(0.4)
    assert done == found
    torch.set_num_threads(before)
