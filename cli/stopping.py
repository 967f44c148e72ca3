"""Signals: the first one ends the work so that it can go on later, a second one at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from quantkit.core.errors import ResourceError, StoppedError

GRACE = 8.0
"""Seconds after which what still computes is dropped."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_received: list[int] = []
_resumable: list[Path] = []


def install() -> None:
    """Have signals end the work, except those that whoever started the process has ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def exit_code() -> int:
    """That of a process whose work was ended and cannot go on."""
    return 128 + (_received[0] if _received else signal.SIGINT)


def _stop(number: int, _: FrameType | None) -> None:
    _received.append(number)
    if len(_received) > 1:
        os._exit(128 + number)
    _say("stopping; once more to stop at once")
    timer = threading.Timer(GRACE, _drop)
    timer.daemon = True
    timer.start()
    raise KeyboardInterrupt


def _drop() -> None:
    """End the process: what is committed is on disk, and what still computes is not waited for."""
    if _resumable:
        _say(f"stopped; try: quantkit resume {_resumable[-1]}")
    os._exit(StoppedError.exit_code if _resumable else exit_code())


def _say(line: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        os.write(2, f"{line}\n".encode())


@contextmanager
def resumable(output: Path) -> Iterator[None]:
    """A run into `output` that can go on: says so where it is stopped, or runs out of disk.

    Raises:
        StoppedError: by a signal.
    """
    from quantkit.runs.fit.builds import unfinished_blocks

    _resumable.append(output)
    try:
        yield
    except KeyboardInterrupt as stop:
        blocks = unfinished_blocks(output)
        why = f"{blocks} finished blocks are kept" if blocks else "no block was finished"
        again = f"quantkit resume {output}" if blocks else "the same command"
        raise StoppedError("stopped", why=why, hint=again) from stop
    except ResourceError as error:
        if blocks := unfinished_blocks(output):
            error.hint += f"; quantkit resume {output} then goes on after {blocks} finished blocks"
        raise
    finally:
        _resumable.pop()
