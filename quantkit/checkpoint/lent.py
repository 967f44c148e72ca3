"""Memory for tensors that are looked at and forgotten: a new page costs more than filling it."""

from __future__ import annotations

from threading import Lock

import torch

MOST = 2**28
"""Bytes that lie unused at most."""
WASTE = 2
"""Times the size of a tensor that the memory for it may have."""


class Memory:
    """Pieces of memory that are lent again when they are given back."""

    def __init__(self) -> None:
        self._free: list[torch.Tensor] = []
        self._lock = Lock()

    def lend(self, nbytes: int) -> torch.Tensor:
        """The smallest free piece that is large enough, or a new one; uint8, with any content."""
        with self._lock:
            fitting = (each for each in self._free if nbytes <= len(each) <= WASTE * nbytes)
            found = min(fitting, key=len, default=None)
            if found is None:
                return torch.empty(nbytes, dtype=torch.uint8)
            self._free = [each for each in self._free if each is not found]
            return found

    def give_back(self, pieces: list[torch.Tensor]) -> None:
        """Take back pieces, which nobody may look at any more; the oldest are let go."""
        with self._lock:
            self._free += pieces
            while sum(map(len, self._free)) > MOST:
                self._free.pop(0)


class Loan:
    """What is lent for one subject, in one thread at a time; given back together."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._pieces: list[torch.Tensor] = []

    def __call__(self, nbytes: int) -> torch.Tensor:
        """Memory for a tensor, uint8 (nbytes,), with any content."""
        self._pieces.append(piece := self._memory.lend(nbytes))
        return piece[:nbytes]

    def end(self) -> None:
        """Give all of it back: every tensor in it is overwritten from now on."""
        self._memory.give_back(self._pieces)
        self._pieces = []
