"""Bytes in files to tensors in memory and back, one at a time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path

import torch

from quantkit.checkpoint.dtypes import TORCH_DTYPES
from quantkit.checkpoint.files import Fingerprint, changed, opened, read_into
from quantkit.checkpoint.stored import TensorInfo
from quantkit.checkpoint.threads import spare
from quantkit.core.errors import IntegrityError, ResourceError
from quantkit.grid.transfer import to_host

RETRIES = 2
READERS = spare(8)
PIECE = 4 * 2**20
"""Bytes that one thread reads at a time."""
Lend = Callable[[int], torch.Tensor]
"""Memory of so many bytes, uint8 (bytes,)."""
MOST_PINNED = 2**28
"""Bytes of the largest tensor that is read into pinned memory, of which torch gives none back."""


def read_tensor(
    path: Path,
    name: str,
    info: TensorInfo,
    expected: Fingerprint,
    *,
    pinned: bool = False,
    lend: Lend | None = None,
) -> torch.Tensor:
    """Tensor `name` with the shape and dtype of `info`, bit for bit, in CPU memory of its own.

    `pinned`: in memory that a GPU copies from by itself, unless the tensor is very large. `lend`:
    what gives so many bytes of memory to read it into.

    Read, never mapped: a disk that fails under a mapping kills the process (SIGBUS), and mapped
    pages change when the file does. A failing read (EIO, ESTALE) is tried again on a newly opened
    file.

    Raises:
        IntegrityError: the file is not the one that was opened, or has booleans other than 0 and 1.
        ResourceError: the disk fails.
    """
    pinned = pinned and info.nbytes <= MOST_PINNED
    size = info.nbytes
    memory = lend(size) if lend else torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    for attempt in range(RETRIES + 1):
        try:
            with opened(path) as (fd, fingerprint):
                if fingerprint != expected:
                    raise changed(path)
                _read_in_threads(path, fd, memory.numpy().data, info.start)
            break
        except ResourceError:
            if attempt == RETRIES:
                raise
    if info.dtype == "BOOL" and info.nbytes and int(memory.max()) > 1:
        raise IntegrityError(f"`{name}` in `{info.shard}` contains booleans other than 0 and 1")
    return memory.view(TORCH_DTYPES[info.dtype]).reshape(info.shape)


def _read_in_threads(path: Path, fd: int, memory: memoryview, offset: int) -> None:
    """As `read_into`; returns after all threads, as they must not meet the next attempt."""
    if READERS == 1 or len(memory) <= PIECE:
        read_into(path, fd, memory, offset)
        return
    starts = range(0, len(memory), PIECE)
    parts = [(memory[start : start + PIECE], offset + start) for start in starts]
    reading = [_readers().submit(read_into, path, fd, *part) for part in parts]
    wait(reading)
    for each in reading:
        each.result()


@cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(READERS, "read")


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor of any shape and dtype in C order; a view where it allows one."""
    flat = tensor.detach().contiguous().reshape(-1)
    return to_host(flat.view(torch.uint8)).numpy().data
