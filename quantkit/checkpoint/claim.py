"""Whether an output can be made, and who makes it: its partial folder, claimed by one run."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
from contextlib import suppress
from pathlib import Path

from quantkit.checkpoint import durable
from quantkit.checkpoint.destination import require_outside
from quantkit.checkpoint.journal import journal_folder
from quantkit.core.errors import InputError, ResourceError

MARKER = ".quantkit-unfinished"
"""Marks a partial folder as written by quantkit; files with this name are never copied."""


def check_output(output: Path, source: Path | None = None) -> None:
    """Check that `output` can become a new folder outside of `source`.

    Raises:
        InputError: it exists and is not an empty folder, or is a mount point, its parent does not
            exist, or it would lie in the source.
        ResourceError: nothing can be written there.
    """
    if output.name in ("", ".."):
        raise InputError(
            f"`{output}` is not a valid name for a new folder", hint="-o path/to/new-folder"
        )
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise InputError(f"`{output}` exists and is not a folder", hint="choose another -o")
    if output.is_mount():
        raise InputError(
            f"`{output}` is a mount point",
            why="quantkit renames a finished folder to this name, which a mount point prevents",
            hint=f"-o {shlex.quote(str(output / 'name'))}",
        )
    if output.is_dir() and any(output.iterdir()):
        raise InputError(
            f"`{output}` exists and is not empty",
            why="quantkit never overwrites files",
            hint="choose another -o",
        )
    if not output.parent.is_dir():
        raise InputError(
            f"`{output.parent}` is not a folder",
            why=f"`{output.name}` would be created in it",
            hint=f"mkdir -p {shlex.quote(str(output.parent))}",
        )
    probe = output.with_name(f".{output.name}.probe")
    with durable.io_errors(output):  # only creating a folder shows that it is possible
        probe.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # another run checks the same
            probe.rmdir()
    if source is not None:
        require_outside(output, source)


def require_free(output: Path) -> None:
    """As `check_output`, and no other run makes it; before any work, as one could begin later.

    Raises:
        InputError: as `check_output`.
        ResourceError: another run makes it.
    """
    check_output(output)
    folder = partial_folder(output)
    if folder.is_dir():
        fd = _open_folder(folder)
        try:
            _lock(fd, folder)
        finally:
            os.close(fd)


def discard(output: Path) -> None:
    """Remove what an unfinished run into `output` has left.

    Raises:
        ResourceError: the run is under way.
    """
    folder = partial_folder(output)
    if (folder / MARKER).is_file() or _is_empty(folder):
        lock = claim(folder)
        try:
            remove_claimed(folder)
        finally:
            os.close(lock)
    shutil.rmtree(journal_folder(output), ignore_errors=True)


def remove_claimed(folder: Path) -> None:
    """Remove a locked partial folder, its marker last: what a kill leaves is known as ours."""
    with suppress(OSError):  # a disk that fails is told by whoever found it
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != MARKER:
                with suppress(OSError):
                    entry.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def partial_folder(output: Path) -> Path:
    """The name of `output` until it is complete."""
    return output.parent / f"{output.name}.partial"


def claim(folder: Path) -> int:
    """Create the partial folder, or take over that of a killed run; returns a locked descriptor.

    The lock is the kernel's (flock) on the folder itself: it ends with the process, and survives
    the rename.
    """
    with durable.io_errors(folder):
        with suppress(FileExistsError):
            folder.mkdir()
        try:
            fd = _open_folder(folder)
        except OSError:
            remove_empty(folder)
            raise
        try:
            _lock(fd, folder)
        except BaseException:
            os.close(fd)
            raise
    return fd


def take(folder: Path, kept: set[str], *, ours: bool) -> None:
    """Mark a locked folder as unfinished, and remove what a killed run left in it but `kept`."""
    marker = folder / MARKER
    if not ours and not marker.is_file() and any(folder.iterdir()):
        raise _in_the_way(folder)
    with durable.io_errors(folder):
        marker.touch()
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != marker and entry.name not in kept:
                entry.unlink()


def remove_empty(folder: Path) -> None:
    """Remove the folder if nothing is in it."""
    with suppress(OSError):
        folder.rmdir()


def _open_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except NotADirectoryError:
        raise _in_the_way(folder) from None


def _in_the_way(folder: Path) -> InputError:
    return InputError(
        f"`{folder}` already exists",
        why="it is not an unfinished run of quantkit",
        hint="remove or rename it",
    )


def _lock(fd: int, folder: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = folder.exists() and os.path.samestat(os.fstat(fd), folder.stat())
    except BlockingIOError:
        mine = False
    if not mine:
        raise ResourceError(
            f"another run is writing to `{folder}`",
            hint="wait for it to end, or choose another -o",
        )
