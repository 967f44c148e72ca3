"""Bytes in files to tensors in memory and back, one at a time."""

from pathlib import Path

import torch

from quantkit.checkpoint.dtypes import TORCH_DTYPES
from quantkit.checkpoint.files import Fingerprint, changed, opened, read_into
from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import IntegrityError, ResourceError

RETRIES = 2


def read_tensor(path: Path, name: str, info: TensorInfo, expected: Fingerprint) -> torch.Tensor:
    """Tensor `name` with the shape and dtype of `info`, bit for bit, in CPU memory of its own.

    Read, never mapped: a disk that fails under a mapping kills the process (SIGBUS), and mapped
    pages change when the file does. A failing read (EIO, ESTALE) is tried again on a newly opened
    file.

    Raises:
        IntegrityError: the file is not the one that was opened, or has booleans other than 0 and 1.
        ResourceError: the disk fails.
    """
    memory = torch.empty(info.nbytes, dtype=torch.uint8)
    for attempt in range(RETRIES + 1):
        try:
            with opened(path) as (fd, fingerprint):
                if fingerprint != expected:
                    raise changed(path)
                read_into(path, fd, memory.numpy().data, info.start)
            break
        except ResourceError:
            if attempt == RETRIES:
                raise
    if info.dtype == "BOOL" and info.nbytes and int(memory.max()) > 1:
        raise IntegrityError(f"`{name}` in `{info.shard}` contains booleans other than 0 and 1")
    return memory.view(TORCH_DTYPES[info.dtype]).reshape(info.shape)


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor of any shape and dtype in C order; a view where it allows one."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def require_finite(name: str, tensor: torch.Tensor) -> None:
    """Check that `tensor`, of any shape and dtype, contains neither NaN nor Inf.

    Raises:
        IntegrityError: it does; the message names it.
    """
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    # aminmax does not support 8-bit floats; bfloat16 represents each of them exactly
    wide = tensor.to(torch.bfloat16) if tensor.dtype.itemsize == 1 else tensor
    low, high = torch.aminmax(wide.detach())
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        raise IntegrityError(
            f"`{name}` contains NaN or Inf",
            hint="check the original checkpoint; if it is finite, use another method or dtype",
        )
