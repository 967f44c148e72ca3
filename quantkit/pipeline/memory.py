"""Return freed memory to the system, and recognize that there was too little."""

import ctypes
import gc
import re
import sys

import torch

M_MMAP_THRESHOLD = -3
MAPPED_BYTES = 1 << 18


def give_back() -> None:
    """Return freed memory to the system where the C library keeps it (glibc does, per thread)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def map_large_tensors() -> None:
    """Return every freed tensor of MAPPED_BYTES or more to the system at once.

    glibc raises its own limit as tensors are freed, up to 32 MB, and keeps smaller ones in a heap.
    The heap fragments where two models take turns: by 64 MB after each block of 134 MB.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)


def give_back_gpu() -> None:
    """Return the GPU memory of dropped tensors, which torch keeps for later, to other programs.

    Networks are cycles of references: only a collection drops their tensors.
    """
    gc.collect()
    torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation was refused; by a CPU and by cuBLAS as a RuntimeError like others."""
    said = re.search(r"out of memory|can't allocate memory|ALLOC_FAILED", str(error))
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or said is not None
