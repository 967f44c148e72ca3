"""Text made by code of strangers, within bounds of time and memory."""

import os
import resource
import select
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic

CPU_SECONDS = 5
WALL_SECONDS = 120.0
MEMORY_BYTES = 512 * 2**20
"""On top of what the process has already."""


def bounded(make: Callable[[], str], longest: int) -> str:
    """What `make` returns, run in a forked child that may neither last nor grow.

    jinja's sandbox keeps templates from files and functions, not from loops in loops or from
    a text of gigabytes. A child costs some milliseconds.

    Raises:
        RuntimeError: `make` raised, which is its text, or made more than `longest` characters.
        TimeoutError: it needed more time or memory than it may.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(make, longest, writing)
    os.close(writing)
    try:
        answer = _read(reading, 4 * longest + 1)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # not yet waited for, so the number is still its own
        os.waitpid(child, 0)
    if not answer:
        raise TimeoutError("it takes too much time or memory")
    text = answer[1:].decode()
    if answer[:1] != b"+":
        raise RuntimeError(text)
    return text


def _answer(make: Callable[[], str], longest: int, writing: int) -> None:
    """In the child: write `+` and the text, or `-` and what went wrong, and end at once."""
    try:
        _limit(resource.RLIMIT_CPU, CPU_SECONDS)
        if used := _address_space():
            _limit(resource.RLIMIT_AS, used + MEMORY_BYTES)
        try:
            text, mark = make(), b"+"
            if len(text) > longest:
                text, mark = f"it made {len(text):,} characters", b"-"
        except MemoryError:
            return
        except Exception as error:  # noqa: BLE001 - code of a stranger
            text, mark = (str(error) or type(error).__name__)[:longest], b"-"
        data = mark + text.encode(errors="replace")
        while data:
            data = data[os.write(writing, data) :]
    finally:
        os._exit(0)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _address_space() -> int:
    """Bytes of address space in use now, 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _read(reading: int, most: int) -> bytes:
    """What the child writes until it ends; nothing where it takes too long."""
    parts: list[bytes] = []
    size, end = 0, monotonic() + WALL_SECONDS
    while size < most and select.select([reading], [], [], max(0.0, end - monotonic()))[0]:
        part = os.read(reading, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    return b"".join(parts) if size >= most else b""
