"""Numbers that do not depend on how many threads compute them."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """A stretch of work on one CPU thread, as context or as decorator.

    Cholesky, odd-sized matrix products and sums over long axes round differently when torch splits
    them among threads. What decides about codes therefore runs on one. Methods are decorated with
    it where torch is not loaded yet.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
