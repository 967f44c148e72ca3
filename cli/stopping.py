"""Signals: the first one ends the work so that it can go on later, a second one at once."""

import os
import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import socket, socketpair
from types import FrameType

from quantkit.cli.console import Console
from quantkit.core.errors import StoppedError

GRACE = 8.0
"""Seconds after which what still computes is dropped."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_received: list[int] = []
_resumable: list[str] = []


def install() -> None:
    """Have signals end the work, except those that whoever started the process has ignored."""
    reader, writer = socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), name="signals", daemon=True).start()
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def exit_code() -> int:
    """That of a process whose work was ended and cannot go on."""
    return 128 + (_received[0] if _received else signal.SIGINT)


def _stop(number: int, _: FrameType | None) -> None:
    """Python calls it in the main thread, once the operation that computes there is over."""
    _received.append(number)
    if len(_received) == 1:
        raise KeyboardInterrupt


def _watch(signals: socket) -> None:
    """Get the numbers of signals at once, whatever the main thread computes."""
    first = signals.recv(1)[0]
    _say("stopping; once more to stop at once")
    signals.settimeout(GRACE)
    try:
        os._exit(128 + signals.recv(1)[0])
    except TimeoutError:  # what is committed is on disk, and the rest is not waited for
        if _resumable:
            _say(f"stopped; try: {_resumable[-1]}")
        os._exit(StoppedError.exit_code if _resumable else 128 + first)


def _say(line: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        os.write(2, f"{line}\n".encode())


@contextmanager
def resumable(console: Console, output: Path, again: str = "") -> Iterator[None]:
    """A run into `output` that can go on, with `quantkit resume` or `again`: says so at its end.

    Raises:
        StoppedError: by a signal.
    """
    from quantkit.runs.fit.builds import unfinished_blocks

    again = again or f"quantkit resume {shlex.quote(str(output))}"
    _resumable.append(again)
    try:
        yield
    except BaseException as error:
        if blocks := unfinished_blocks(output):
            console.note(f"finished blocks that are kept: {blocks}; `{again}` goes on after them")
        if isinstance(error, KeyboardInterrupt):
            raise StoppedError("stopped by a signal") from error
        raise
    finally:
        _resumable.pop()
