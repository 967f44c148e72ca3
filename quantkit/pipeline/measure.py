"""The cost of a run: wall time, CPU time, peak memory."""

import re
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time and of CPU time (all threads), and the process' peak RSS in bytes."""

    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int


def stopwatch() -> Callable[[], Cost]:
    """A function that returns the cost since this call."""
    started, cpu = monotonic(), _cpu()

    def read() -> Cost:
        return Cost(monotonic() - started, _cpu() - cpu, peak_rss())

    return read


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_rss() -> int:
    """The process' largest resident size so far, in bytes.

    On Linux from /proc: its getrusage includes the size of the parent that started the process.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024  # type: ignore[index]  # or TypeError
    except (OSError, TypeError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
