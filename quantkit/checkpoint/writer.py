"""The output folder, written under a temporary name and renamed once."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import TYPE_CHECKING, Any

from quantkit.checkpoint import durable, files, strict_json
from quantkit.checkpoint.filenames import INDEX, SUMS
from quantkit.checkpoint.hashes import hashing_now
from quantkit.checkpoint.shards import DEFAULT_SHARD_SIZE, Shard, TensorSpec, plan_shards
from quantkit.core.errors import InputError, QuantkitError, ResourceError

if TYPE_CHECKING:
    import torch

MARKER = ".quantkit-unfinished"
"""Marks a partial folder as written by quantkit; files with this name are never copied."""


class ArtifactWriter:
    """Writes tensors in any order to their planned offsets; the layout depends on the specs alone.

    Use as a context manager. Entering creates `<output>.partial`, locks it and reserves the space
    of every shard; leaving without `publish()` removes it. Tensors are written at once, not kept.
    """

    def __init__(
        self,
        output: Path,
        specs: Iterable[TensorSpec],
        max_shard_size: int = DEFAULT_SHARD_SIZE,
    ) -> None:
        self.output = output
        self.folder = output.parent / f"{output.name}.partial"
        self.shards = plan_shards(specs, max_shard_size)
        self._place = {
            spec.name: (shard, spec, offset)
            for shard in self.shards
            for spec, offset in zip(shard.specs, shard.offsets, strict=True)
        }
        self._missing = {shard.name: {s.name for s in shard.specs} for shard in self.shards}
        if len(self._place) != sum(len(shard.specs) for shard in self.shards):
            raise QuantkitError("two tensors of the output have the same name")
        self._lock: int | None = None
        self._complete = False

    def __enter__(self) -> ArtifactWriter:
        """Reserve the name and the disk space.

        Raises:
            InputError: the output exists, or its parent does not.
            ResourceError: not enough disk, no permission, or another run writes there.
        """
        check_output(self.output)
        self._lock = _claim(self.folder)
        try:
            self._check_space()
            for shard in self.shards:
                self._reserve(shard)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the partial folder unless it was published."""
        self._leave()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Write one tensor in its planned shape and dtype, from any device; it is not modified.

        Each planned tensor must be added exactly once, in any order.

        Raises:
            IntegrityError: it contains NaN or Inf.
            ResourceError: the disk is full or fails.
        """
        from quantkit.checkpoint.tensors import as_bytes, require_finite

        if name not in self._place:
            raise QuantkitError(f"`{name}` is not a planned tensor of the output")
        shard, spec, offset = self._place[name]
        if TensorSpec.like(name, tensor) != spec:
            got = f"{tensor.dtype} {tuple(tensor.shape)}"
            raise QuantkitError(f"`{name}` is {got}, planned as {spec.dtype} {spec.shape}")
        if name not in self._missing[shard.name]:
            raise QuantkitError(f"`{name}` is already written")
        require_finite(name, tensor)
        path = self.folder / shard.name
        with durable.io_errors(path):
            fd = os.open(durable.temporary(path), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                durable.write_all(fd, as_bytes(tensor), offset)
                self._missing[shard.name].remove(name)
                if not self._missing[shard.name]:
                    os.fsync(fd)
            finally:
                os.close(fd)
            if not self._missing[shard.name]:
                durable.settle(path)
                hashing_now(path)  # for `publish`, while the weights are verified

    def copy_side_file(self, source: Path, name: str | None = None) -> None:
        """Copy a file of the source as bytes, under its own name or the relative path `name`."""
        durable.write_file(self.folder / (name or source.name), files.chunks(source))

    def write_json(self, name: str, value: Any) -> None:
        """Write JSON with keys in their order; the same value gives the same bytes."""
        self.write_bytes(name, strict_json.dumps(value))

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a small file."""
        durable.write_file(self.folder / name, [data])

    def finish_weights(self) -> None:
        """Write the index; with its config.json, `folder` can then be opened as a checkpoint.

        Raises:
            QuantkitError: planned tensors are missing.
        """
        missing = sorted(name for names in self._missing.values() for name in names)
        if missing:
            named = ", ".join(f"`{name}`" for name in missing[:5])
            raise QuantkitError(f"{len(missing)} tensors were never written", why=f"first: {named}")
        if len(self.shards) > 1 and not (self.folder / INDEX).exists():
            weight_map = {spec.name: s.name for s in self.shards for spec in s.specs}
            total = sum(spec.nbytes for shard in self.shards for spec in shard.specs)
            ordered = dict(sorted(weight_map.items()))
            self.write_json(INDEX, {"metadata": {"total_size": total}, "weight_map": ordered})

    def publish(self) -> Path:
        """Finish the weights, write SHA256SUMS, rename the folder; returns the output's path.

        Raises:
            QuantkitError: planned tensors are missing.
            ResourceError: the output exists by now; the finished folder is kept.
        """
        self.finish_weights()
        self.write_bytes(SUMS, _sums(self.folder).encode())
        with durable.io_errors(self.folder):
            (self.folder / MARKER).unlink()
            durable.sync_folder(self.folder)
        self._complete = True
        try:
            self.folder.rename(self.output)  # fails unless the output is missing or an empty folder
        except OSError as error:
            raise ResourceError(
                f"cannot rename the finished folder to `{self.output}`",
                why=error.strerror,
                hint=f"mv {self.folder} to another name; it is complete",
            ) from error
        with durable.io_errors(self.output):
            durable.sync_folder(self.output.parent)
        return self.output

    def _check_space(self) -> None:
        """Require 5 % more than the weights, for the folder's other files."""
        with durable.io_errors(self.folder):
            free = shutil.disk_usage(self.folder).free
        need = sum(shard.nbytes for shard in self.shards) * 21 // 20
        if need > free:
            raise ResourceError(
                f"not enough disk space for `{self.output}`",
                why=f"{need:,} bytes are needed, {free:,} are free, {need - free:,} are missing",
                hint="free some space, or write to another disk",
            )

    def _reserve(self, shard: Shard) -> None:
        """Create a shard of its final size with its head; later writes cannot run out of disk."""
        path = self.folder / shard.name
        with durable.io_errors(path):
            fd = durable.create(durable.temporary(path))
            try:
                durable.allocate(fd, shard.nbytes)
                durable.write_all(fd, shard.head, 0)
                if not shard.specs:
                    os.fsync(fd)
            finally:
                os.close(fd)
            if not shard.specs:
                durable.settle(path)

    def _leave(self) -> None:
        if self._lock is None:
            return
        if not self._complete:
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        self._lock = None


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
    with durable.io_errors(output):  # only creating a folder shows that it is possible
        Path(mkdtemp(prefix=f".{output.name}.", dir=output.parent)).rmdir()
    if source is not None and output.resolve().is_relative_to(source.resolve()):
        raise InputError(
            f"`{output}` is inside the model's folder",
            why="quantkit reads the model while it writes the output",
            hint=f"-o {shlex.quote(str(source.resolve()))}-quantized",
        )


def _claim(folder: Path) -> int:
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
            _remove_empty(folder)
            raise
        try:
            _lock(fd, folder)
            _take(folder)
        except BaseException:
            os.close(fd)
            raise
    return fd


def _take(folder: Path) -> None:
    """Mark a locked folder as unfinished, and remove what a killed run left in it."""
    marker = folder / MARKER
    if not marker.is_file() and any(folder.iterdir()):
        raise _in_the_way(folder)
    try:
        marker.touch()
    except OSError:
        _remove_empty(folder)
        raise
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry != marker:
            entry.unlink()


def _remove_empty(folder: Path) -> None:
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


def _sums(folder: Path) -> str:
    """SHA-256 of every file, sorted by name, as `sha256sum -c --strict` reads it."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    kept = sorted(name for name, path in paths.items() if path.is_file() and name != MARKER)
    hashes = {name: hashing_now(paths[name]) for name in kept}
    return "".join(f"{digest.result()}  {name}\n" for name, digest in hashes.items())
