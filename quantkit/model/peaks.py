"""The most memory that each step of a run takes, for its line of progress."""

import os
from pathlib import Path
from threading import Event, Lock, Thread
from types import TracebackType

import torch

from quantkit.core.units import size

INTERVAL = 0.02
"""Seconds between two samples."""


def resident_bytes() -> int | None:
    """Resident bytes of the process; None if the system does not report them (not Linux)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


class Peaks:
    """The most memory of this process, or of a GPU, between two calls of `take`.

    It is sampled. The system's own record of a process would have to be reset, which would hide the
    peak of the run from whoever measures it from outside.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._most = 0
        self._lock = Lock()
        self._over = Event()
        self._thread = Thread(target=self._watch, name="peaks", daemon=True)

    def __enter__(self) -> "Peaks":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def take(self) -> int:
        """Bytes at most since the last call; 0 where the system does not report them."""
        with self._lock:
            most, self._most = max(self._most, self._now()), 0
        return most

    def beside(self, name: str) -> str:
        """`name` with what `take` returns, where that is known."""
        most = self.take()
        return f"{name}  peak {size(most)}" if most else name

    def _now(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        return resident_bytes() or 0

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL):
            with self._lock:
                self._most = max(self._most, self._now())
