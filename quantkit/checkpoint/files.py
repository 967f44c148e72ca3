"""Reads of untrusted files: regular, inside their folder, unchanged since they were opened."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.checkpoint import strict_json
from quantkit.core.errors import InputError, IntegrityError, ResourceError

CHUNK = 8 * 2**20
JSON_LIMIT = 10 * 2**20


@dataclass(frozen=True)
class Fingerprint:
    """What changes when a file is written: size in bytes, mtime in ns, inode."""

    size: int
    mtime_ns: int
    inode: int


def inside(folder: Path, name: str) -> Path:
    """The real path of `folder`/`name`: in the folder, or in its hub cache's blob store.

    Raises:
        InputError: it is outside of both, or does not exist.
    """
    path = folder / name
    try:
        real, root = path.resolve(strict=True), folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        raise InputError(f"cannot open `{path}`", why=str(error)) from None
    if not any(real.is_relative_to(home) for home in (root, *_blob_stores(root))):
        raise InputError(
            f"`{path}` links to a file outside its folder",
            why=f"its target is `{real}`",
            hint="replace the link with the file itself",
        )
    return real


def _blob_stores(root: Path) -> tuple[Path, ...]:
    """The folders that a hub cache snapshot links to: `<cache>/<repo>/blobs`, `<cache>/blobs`."""
    if root.parent.name != "snapshots":
        return ()
    repository = root.parent.parent
    return (repository / "blobs", repository.parent / "blobs")


@contextmanager
def opened(path: Path) -> Iterator[tuple[int, Fingerprint]]:
    """A file descriptor for reading a regular file, and the file's fingerprint.

    O_NONBLOCK, because opening a FIFO would block forever; then only regular files are accepted.

    Raises:
        InputError: missing, or not a regular file.
        ResourceError: no permission, or the disk fails.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"`{path}` is missing") from None
    except OSError as error:
        raise ResourceError(f"cannot open `{path}`", why=error.strerror) from error
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise InputError(f"`{path}` is not a regular file")
        yield fd, Fingerprint(info.st_size, info.st_mtime_ns, info.st_ino)
    finally:
        os.close(fd)


def read_into(path: Path, fd: int, memory: memoryview, offset: int) -> None:
    """Fill `memory` in place with the bytes of the file from `offset` on.

    Raises:
        IntegrityError: the file is too short.
        ResourceError: the disk fails.
    """
    done = 0
    while done < len(memory):
        try:
            got = os.preadv(fd, [memory[done : done + CHUNK]], offset + done)
        except OSError as error:
            where = f"`{path}` at byte {offset + done:,}"
            raise ResourceError(f"cannot read {where}", why=error.strerror) from error
        if got == 0:
            raise IntegrityError(
                f"`{path}` ends at byte {offset + done:,}, {len(memory) - done:,} bytes too early",
                hint="fetch the file again",
            )
        done += got


def changed(path: Path) -> IntegrityError:
    """The error for a source that changed while it was read."""
    return IntegrityError(
        f"`{path}` changed while it was being read",
        why="its size, time or inode differs from when the checkpoint was opened",
        hint="run again when no other process writes to it",
    )


@contextmanager
def there_before(path: Path) -> Iterator[None]:
    """Within it, a file that was there when a run began is missing by accident, not by fault.

    Raises:
        ResourceError: it is missing now, so that the run can go on once it is back.
    """
    try:
        yield
    except InputError as error:
        if path.exists():
            raise
        raise ResourceError(
            f"`{path}` is gone",
            why="it was there when the checkpoint was opened",
            hint="put it back, and run the same command again",
        ) from error


def read_json(path: Path, max_bytes: int = JSON_LIMIT, *, infinite: bool = False) -> Any:
    """The value in a JSON file; `infinite` as in `strict_json.loads`.

    Raises:
        InputError: not a regular file, or not strict JSON.
    """
    with opened(path) as (fd, fingerprint):
        data = bytearray(min(fingerprint.size, max_bytes + 1))
        read_into(path, fd, memoryview(data), 0)
    try:
        return strict_json.loads(bytes(data), max_bytes=max_bytes, infinite=infinite)
    except ValueError as error:
        raise InputError(f"`{path}` cannot be read", why=f"it {error}") from None


def found_in(path: Path, pattern: str) -> str | None:
    """The first group of `pattern` in a small text file; None where nothing matches."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(pattern, text, re.MULTILINE)
    return match[1].strip() if match else None


def chunks(path: Path, start: int = 0, size: int | None = None) -> Iterator[memoryview]:
    """The file's bytes in pieces, `size` of them from `start` on, or all.

    All pieces share one buffer, so each overwrites the last.

    Raises:
        IntegrityError: the file is too short.
    """
    memory = memoryview(bytearray(CHUNK))
    with opened(path) as (fd, fingerprint):
        end = fingerprint.size if size is None else start + size
        for offset in range(start, end, CHUNK):
            part = memory[: min(CHUNK, end - offset)]
            read_into(path, fd, part, offset)
            yield part


def sha256(path: Path, start: int = 0, size: int | None = None) -> str:
    """SHA-256 as 64 hex digits, of the file or of `size` bytes from `start` on."""
    digest = hashlib.sha256()
    for part in chunks(path, start, size):
        digest.update(part)
    return digest.hexdigest()
