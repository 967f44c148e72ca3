"""Runs untrusted code that returns text, with limits on time and memory."""

import os
import resource
import select
import signal
from collections.abc import Callable
from pathlib import Path
from time import monotonic

CPU_SECONDS = 1
WALL_SECONDS = 120.0
MEMORY_BYTES = 512 * 2**20
"""In addition to what the process uses already."""


def bounded(make: Callable[[], str], longest: int) -> str:
    """The text that `make` returns, called in a forked child with limits on time and memory.

    jinja's sandbox denies a template access to files and functions, but it does not stop nested
    loops or a text of gigabytes. A child costs a few milliseconds.

    Raises:
        RuntimeError: `make` raised an error, whose text this carries, or returned more than
            `longest` characters.
        TimeoutError: it exceeded the time or memory limit.
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
        os.kill(child, signal.SIGKILL)  # safe: the id is not reused before waitpid
        os.waitpid(child, 0)
    if not answer:
        raise TimeoutError("it exceeds the time or memory limit")
    text = answer[1:].decode()
    if answer[:1] != b"+":
        raise RuntimeError(text)
    return text


def _answer(make: Callable[[], str], longest: int, writing: int) -> None:
    """In the child: writes `+` and the text, or `-` and the error, and exits at once."""
    try:
        _limit(resource.RLIMIT_CPU, CPU_SECONDS)
        if used := _address_space():
            _limit(resource.RLIMIT_AS, used + MEMORY_BYTES)
        try:
            text, mark = make(), b"+"
            if len(text) > longest:
                text, mark = f"it returned {len(text):,} characters", b"-"
        except MemoryError:
            return
        except Exception as error:  # noqa: BLE001 - untrusted code
            text, mark = (str(error) or type(error).__name__)[:longest], b"-"
        data = mark + text.encode(errors="replace")
        while data:
            data = data[os.write(writing, data) :]
    finally:
        os._exit(0)  # no cleanup: buffers and exit handlers belong to the parent


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _address_space() -> int:
    """Bytes of address space in use now; 0 if the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _read(reading: int, most: int) -> bytes:
    """All bytes that the child writes until it exits; empty if it takes too long."""
    parts: list[bytes] = []
    size, end = 0, monotonic() + WALL_SECONDS
    while size < most and select.select([reading], [], [], max(0.0, end - monotonic()))[0]:
        part = os.read(reading, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    return b"".join(parts) if size >= most else b""
