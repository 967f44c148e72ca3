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
    call: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """The result for each item, in the items' order; `threads` calls at most are under way.

    The first error is raised, and no call is begun after it.
    """
    begun: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            if len(begun) == threads:
                yield begun.popleft().result()
            begun.append(pool.submit(call, item))
        while begun:
            yield begun.popleft().result()
