"""Results that do not depend on the number of CPU threads."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
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


def side_by_side(products: Iterable[Callable[[], object]]) -> None:
    """Calls all of them, as many at a time as torch has threads, each on one thread of its own.

    A product that torch itself splits among threads may be cut along its inner side, and then its
    sums are rounded differently: MKL does so on Intel's processors. The calls must not write into
    the same memory.
    """
    import torch

    threads = torch.get_num_threads()
    with one_thread():
        if threads == 1:
            for product in products:
                product()
            return
        running = [_pool(threads).submit(product) for product in products]
        try:
            for done in running:
                done.result()
        finally:  # none may write into the caller's memory once this has returned
            for left in running:
                left.cancel()
            wait(running)


@cache  # a thread that ends leaves its BLAS buffers behind
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "product", _stay_alone)


def _stay_alone() -> None:
    import torch

    torch.get_num_threads()  # else the thread's first product takes the number set last elsewhere
    torch.set_num_threads(1)
