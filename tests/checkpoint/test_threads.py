import threading
import time

import pytest

from quantkit.checkpoint.threads import cores, in_order, spare


def test_at_least_one_thread_is_spare() -> None:
    assert 1 <= spare(1) <= spare(8) <= max(1, cores() // 2)


@pytest.mark.parametrize("threads", [1, 3])
def test_results_are_in_order_and_few_calls_under_way(threads: int) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def call(item: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01 * (item % 3))
        with lock:
            running -= 1
        return item * item

    assert list(in_order(call, range(20), threads)) == [n * n for n in range(20)]
    assert most <= threads


def test_no_call_is_begun_after_an_error() -> None:
    seen: list[int] = []

    def call(item: int) -> int:
        seen.append(item)
        return 1 // (item - 3)

    with pytest.raises(ZeroDivisionError):
        list(in_order(call, range(100), 2))
    assert len(seen) < 8


@pytest.mark.parametrize(("most", "expected"), [(10, 2), (3, 1)])
def test_calls_under_way_are_of_a_size_together(most: int, expected: int) -> None:
    under_way, seen, lock = 0, 0, threading.Lock()

    def call(item: int) -> int:
        nonlocal under_way, seen
        with lock:
            under_way += 1
            seen = max(seen, under_way)
        time.sleep(0.02)
        with lock:
            under_way -= 1
        return item

    assert list(in_order(call, range(6), 2, lambda _: 3, most)) == list(range(6))
    assert seen == expected
