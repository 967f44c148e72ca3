"""Atomic writes of files: temporary name, fsync, rename, fsync of the folder."""

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from quantkit.core.errors import ResourceError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def io_errors(path: Path) -> Iterator[None]:
    """Turn an OSError about `path` into a ResourceError."""
    try:
        yield
    except OSError as error:
        what, why = f"cannot write `{error.filename or path}`", error.strerror
        hint = "choose another output folder"
        if error.errno in _FULL:
            hint = "free some space, or write to another disk"
            with suppress(OSError):
                why = f"{why}; {shutil.disk_usage(path.parent).free:,} bytes are free"
        raise ResourceError(what, why=why, hint=hint) from error


def require_space(path: Path, need: int, there: int = 0) -> None:
    """Check that the disk has `need` bytes for `path`, `there` of which it takes already.

    Raises:
        ResourceError: not enough.
    """
    free = shutil.disk_usage(path.parent).free + there
    if need > free:
        raise ResourceError(
            f"not enough disk space for `{path}`",
            why=f"{need:,} bytes are needed, {free:,} are free, {need - free:,} are missing",
            hint="free some space, or write to another disk",
        )


def temporary(path: Path) -> Path:
    """The name of `path` until the file is complete."""
    return path.with_name(path.name + ".tmp")


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Write a new file of mode 0666 less the umask.

    Raises:
        ResourceError: disk full, no permission, I/O error; an fsync that failed is not tried again,
            because the kernel may then report success for data that is lost.
    """
    with io_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = create(temporary(path))
        try:
            for chunk in chunks:
                write_all(fd, chunk)
            os.fsync(fd)
        finally:
            os.close(fd)
        settle(path)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: an interrupted run leaves the old file or the new one.

    Raises:
        ResourceError: as `write_file`.
    """
    temporary(path).unlink(missing_ok=True)
    write_file(path, [data])


def create(path: Path) -> int:
    """Create a file, which must not exist, and return its descriptor for writing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o666)


def allocate(fd: int, size: int) -> None:
    """Set the size of the file, and reserve its disk space where the file system supports that."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        os.ftruncate(fd, size)


def write_all(fd: int, data: bytes | memoryview, offset: int | None = None) -> None:
    """Write all of `data` at `offset`, or at the end of what was written."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        part = view[done:]
        done += os.write(fd, part) if offset is None else os.pwrite(fd, part, offset + done)


def settle(path: Path) -> None:
    """Rename a complete and synced temporary file to its final name."""
    temporary(path).rename(path)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Flush a file to disk, so that it survives a power failure."""
    _sync(path, os.O_WRONLY | os.O_NOFOLLOW)


def sync_folder(folder: Path) -> None:
    """The same of a folder's entries."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
