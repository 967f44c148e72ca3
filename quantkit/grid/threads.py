"""Results that do not depend on the number of CPU threads."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch on one CPU thread; a context manager or a decorator.

    Cholesky factorizations, matrix products of odd sizes and sums over long axes round differently
    when torch splits them among threads. Whatever decides on codes therefore runs on one thread, so
    that artifacts are the same on every machine of one kind. Methods are decorated
    with it before torch is loaded.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_parallel(work: Callable[[int], object], items: Sequence[int]) -> None:
    """Calls `work` on each of `items`, on as many threads as torch uses; each computes on one.

    A product that torch splits among threads may be summed in another order: MKL on Intel's
    processors splits even its inner dimension. Whole products dealt to threads keep their bits.
    """
    import torch

    threads = min(torch.get_num_threads(), len(items))
    with one_thread():
        if threads > 1:
            list(_pool(threads).map(work, items))
        else:
            for item in items:
                work(item)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads in which torch uses no others; the setting belongs to the thread that makes it."""
    import torch

    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
