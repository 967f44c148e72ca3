"""What a run cost: wall time, CPU time, peak memory."""

import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time and of CPU time (all threads), and the process' peak RSS in bytes."""

    seconds: float
    cpu_seconds: float
    peak_rss_bytes: int


def stopwatch() -> Callable[[], Cost]:
    """A function that gives the cost since now."""
    started, cpu = monotonic(), _cpu()

    def read() -> Cost:
        return Cost(monotonic() - started, _cpu() - cpu, peak_rss())

    return read


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_rss() -> int:
    """The process' largest resident size so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
