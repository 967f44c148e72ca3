"""Threads that hash and write what a block left while the next block computes."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, TypeVar

import torch

from quantkit.checkpoint.threads import spare
from quantkit.grid.transfer import beside

HASHERS = 4
Result = TypeVar("Result")


class Behind:
    """Hashes in some threads and writes in one, which the writer of an artifact asks for.

    Use as a context manager, with `wait` before each block: then at most one block's codes and
    encoded tensors are held, and its errors are raised there.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._hashing = ThreadPoolExecutor(spare(HASHERS), "hash")
        self._writing = ThreadPoolExecutor(1, "write")
        self._running: list[Future[Any]] = []

    def __enter__(self) -> "Behind":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Drop what is not begun; after `wait` there is nothing left."""
        for pool in (self._hashing, self._writing):
            pool.shutdown(cancel_futures=True)

    def hash(self, task: Callable[[], Result]) -> Future[Result]:
        """Run `task` in any order with others."""
        return self._begin(self._hashing, task)

    def write(self, task: Callable[[], Result]) -> Future[Result]:
        """Run `task` after those that were given before."""
        return self._begin(self._writing, task)

    def wait(self) -> None:
        """Wait for all tasks; raises the error of the first that failed."""
        for each in self._running:
            each.result()
        self._running.clear()

    def _begin(self, pool: ThreadPoolExecutor, task: Callable[[], Result]) -> Future[Result]:
        begun = pool.submit(beside(self._device, task))
        self._running.append(begun)
        return begun
