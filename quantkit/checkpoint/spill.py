"""Tensors that wait in a file for want of memory.

Read and written, never mapped: mapped pages count as memory of the process. The file has no name
and ends with the process, however that ends.
"""

import math
import os
from collections.abc import MutableSequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from weakref import finalize

import torch

from quantkit.checkpoint import durable
from quantkit.checkpoint.files import read_into
from quantkit.checkpoint.tensors import as_bytes


class Spill:
    """A file for any number of sequences of tensors in `folder`, which has room for `size` bytes.

    Raises:
        ResourceError: the folder's disk has not so much left, or it cannot be written.
    """

    def __init__(self, folder: Path, size: int = 0) -> None:
        self.path = folder / "hidden states"  # for messages
        durable.require_space(self.path, size)
        with durable.io_errors(self.path), TemporaryFile(dir=folder) as file:
            self._fd = os.dup(file.fileno())
        finalize(self, os.close, self._fd)  # with the last sequence
        self._end = 0

    def batches(self) -> MutableSequence[torch.Tensor]:
        """A new empty sequence; its tensors are read into CPU memory of their own."""
        return _Spilled(self)

    def write(self, tensor: torch.Tensor, place: tuple[int, int] | None) -> tuple[int, int]:
        """Write a tensor over what lies at `place` (offset, bytes) if it is as long; its place."""
        data = as_bytes(tensor)
        if place is None or place[1] != len(data):
            place = (self._end, len(data))
            self._end += len(data)
        with durable.io_errors(self.path):
            durable.write_all(self._fd, data, place[0])
        return place

    def read(self, place: tuple[int, int], dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        """What was written at a place.

        Raises:
            ResourceError: the disk fails.
        """
        tensor = torch.empty(math.prod(shape), dtype=dtype)
        read_into(self.path, self._fd, as_bytes(tensor), place[0])
        return tensor.reshape(shape)


class _Spilled(MutableSequence[torch.Tensor]):
    """A sequence of tensors in a file: of each its place, dtype and shape."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._items: list[tuple[tuple[int, int], torch.dtype, torch.Size]] = []

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        return self._spill.read(*self._items[index])

    def __setitem__(self, index: Any, tensor: Any) -> None:
        place = self._spill.write(tensor, self._items[index][0])
        self._items[index] = (place, tensor.dtype, tensor.shape)

    def __delitem__(self, index: Any) -> None:
        del self._items[index]

    def insert(self, index: int, value: torch.Tensor) -> None:
        """Put a tensor before place `index`."""
        place = self._spill.write(value, None)
        self._items.insert(index, (place, value.dtype, value.shape))


def disk_folder() -> Path:
    """A folder for files that are to relieve memory: $TMPDIR or /var/tmp, as /tmp may be memory."""
    return Path(os.environ.get("TMPDIR") or "/var/tmp")  # noqa: S108 - the file has no name
