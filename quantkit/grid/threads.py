"""Results that do not depend on the number of CPU threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs torch on one CPU thread; a context manager or a decorator.

    Cholesky factorizations, matrix products of odd sizes and sums over long axes round differently
    when torch splits them among threads. Whatever decides on codes therefore runs on one thread, so
    that artifacts are the same on every machine of one kind.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
