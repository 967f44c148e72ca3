import threading
import time
from functools import partial

import pytest
import torch

from quantkit.pipeline.behind import Behind

CPU = torch.device("cpu")


def test_writes_keep_their_order_and_leave_the_caller_s_thread() -> None:
    seen: list[int] = []
    threads: set[int] = set()

    def write(number: int) -> None:
        threads.add(threading.get_ident())
        time.sleep(0.002 * (number % 3))
        seen.append(number)

    with Behind(CPU) as behind:
        for number in range(10):
            behind.write(partial(write, number))
        found = [behind.hash(partial(pow, 2, number)) for number in range(10)]
        behind.wait()
        assert seen == list(range(10))
        assert [each.result() for each in found] == [2**number for number in range(10)]
    assert len(threads - {threading.get_ident()}) == 1


def test_the_first_error_is_raised_where_one_waits_and_the_rest_is_dropped() -> None:
    seen: list[int] = []

    def fail() -> None:
        time.sleep(0.05)
        raise OSError("full")

    def later() -> None:
        time.sleep(0.2)
        seen.append(1)

    with Behind(CPU) as behind:
        behind.write(fail)
        for _ in range(10):
            behind.write(later)
        with pytest.raises(OSError, match="full"):
            behind.wait()
    assert len(seen) <= 1
