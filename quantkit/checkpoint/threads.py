"""Threads that read, hash and write: how many, and one call for each of many items."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """The processor's cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def spare(most: int) -> int:
    """Threads beside those that compute: half of the cores, at least 1 and at most `most`."""
    return max(1, min(most, cores() // 2))


def in_order(
    call: Callable[[Item], Result],
    items: Iterable[Item],
    threads: int,
    size: Callable[[Item], int] = lambda _: 0,
    most: int = 0,
) -> Iterator[Result]:
    """The result for each item, in the items' order; `threads` calls at most are under way.

    Those under way have a `size` of `most` together, but one always is. The first error is raised,
    and no call is begun after it.
    """
    begun: deque[tuple[Future[Result], int]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            while begun and (
                len(begun) == threads or sum(each for _, each in begun) + size(item) > most
            ):
                yield begun.popleft()[0].result()
            begun.append((pool.submit(call, item), size(item)))
        while begun:
            yield begun.popleft()[0].result()
