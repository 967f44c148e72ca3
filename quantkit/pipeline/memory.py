"""Keeping the process as small as what it holds."""

import ctypes
import sys


def give_back() -> None:
    """Return freed memory to the system where the C library keeps it (glibc does, per thread)."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
