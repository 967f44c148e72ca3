"""Numbers that do not depend on how many threads compute them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """A stretch of work on one CPU thread, as context or as decorator.

    Cholesky, odd-sized matrix products and sums over long axes round differently when torch splits
    them among threads. What decides about codes therefore runs on one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
