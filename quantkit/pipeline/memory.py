"""Return freed memory to the system."""

import ctypes
import sys

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
