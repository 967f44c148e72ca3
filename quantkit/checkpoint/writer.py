"""The output folder, written under a temporary name and renamed once."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from quantkit.checkpoint import durable, files, strict_json
from quantkit.checkpoint.claim import (
    MARKER,
    check_output,
    claim,
    partial_folder,
    remove_claimed,
    remove_empty,
    take,
)
from quantkit.checkpoint.filenames import INDEX, SUMS
from quantkit.checkpoint.hashes import hashing_now
from quantkit.checkpoint.journal import Journal, require_same_job
from quantkit.checkpoint.shards import DEFAULT_SHARD_SIZE, Shard, TensorSpec, plan_shards
from quantkit.core.errors import (
    InputError,
    IntegrityError,
    QuantkitError,
    RefusedError,
    ResourceError,
)

if TYPE_CHECKING:
    import torch


class ArtifactWriter:
    """Writes tensors in any order to their planned offsets; the layout depends on the specs alone.

    Use as a context manager. Entering creates `<output>.partial`, locks it and reserves the space
    of every shard; leaving without `publish()` removes it. Tensors are written at once, not kept.

    With a `journal`, what was committed to it survives kills and failures, and entering goes on
    with it: tensors of committed blocks are there already.
    """

    def __init__(
        self,
        output: Path,
        specs: Iterable[TensorSpec],
        max_shard_size: int = DEFAULT_SHARD_SIZE,
        journal: Journal | None = None,
    ) -> None:
        self.output = output
        self.journal = journal
        self.folder = partial_folder(output)
        self.shards = plan_shards(specs, max_shard_size)
        self._place = {
            spec.name: (shard, spec, offset)
            for shard in self.shards
            for spec, offset in zip(shard.specs, shard.offsets, strict=True)
        }
        self._missing = {shard.name: {s.name for s in shard.specs} for shard in self.shards}
        if len(self._place) != sum(len(shard.specs) for shard in self.shards):
            raise QuantkitError("two tensors of the output have the same name")
        self._digests: dict[str, str] = {}
        self._lock: int | None = None
        self._complete = False

    def __enter__(self) -> ArtifactWriter:
        """Reserve the name and the disk space.

        Raises:
            InputError: the output exists, or its parent does not.
            RefusedError, IntegrityError: an unfinished run there is another one, or damaged.
            ResourceError: not enough disk, no permission, or another run writes there.
        """
        check_output(self.output)
        self._lock = claim(self.folder)
        try:
            check_output(self.output)  # which another run may have made before it let go
            self._take_over()
        except BaseException:
            remove_empty(self.folder)
            self._unlock()
            raise
        try:
            if self.journal is not None and not self.journal.blocks:
                self.journal.begin()
            self._check_space()
            for shard in self.shards:
                self._reserve(shard)
        except BaseException as error:
            self._leave(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the partial folder unless it was published, or has blocks to go on with."""
        self._leave(error)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Write one tensor in its planned shape and dtype, from any device; it is not modified.

        Each planned tensor must be added exactly once, in any order.

        Raises:
            IntegrityError: it contains NaN or Inf.
            ResourceError: the disk is full or fails.
        """
        from quantkit.checkpoint.finite import require_finite
        from quantkit.checkpoint.tensors import as_bytes

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
                durable.write_all(fd, data := as_bytes(tensor), offset)
                if self.journal is not None:
                    self._digests[name] = hashlib.sha256(data).hexdigest()
                self._missing[shard.name].remove(name)
                if not self._missing[shard.name]:
                    os.fsync(fd)
            finally:
                os.close(fd)
            if not self._missing[shard.name]:
                durable.settle(path)
                hashing_now(path)  # for `publish`, while the weights are verified

    def commit(self, block: dict[str, Any]) -> None:
        """Record in the journal that the tensors added since the last commit are those of `block`.

        Raises:
            ResourceError: the disk is full or fails.
        """
        if self.journal is None:
            return
        for name in sorted({self._place[tensor][0].name for tensor in self._digests}):
            path = self.folder / name
            if self._missing[name]:  # else it was synced when it got its name
                with durable.io_errors(path):
                    durable.sync_file(durable.temporary(path))
        self.journal.commit({**block, "written": self._digests})
        self._digests = {}

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
        if self.journal is not None:
            self.journal.remove()
        return self.output

    def _take_over(self) -> None:
        """Find the blocks of an unfinished run, or remove what one without any has left."""
        blocks = self._unfinished()
        shards = {path.name for shard in self.shards for path in self._paths(shard)}
        ours = self.journal is not None and self.journal.folder.is_dir()
        take(self.folder, shards if blocks else set(), ours=ours)
        for block in blocks:
            for name, digest in block["written"].items():
                shard, spec, offset = self._place[name]
                self._missing[shard.name].remove(name)
                path = next((path for path in self._paths(shard) if path.exists()), None)
                if path is None or files.sha256(path, offset, spec.nbytes) != digest:
                    raise IntegrityError(
                        f"`{name}` in `{self.folder}` is not what was written",
                        hint=f"rm -r {shlex.quote(str(self.folder))}, and the run starts anew",
                    )

    def _unfinished(self) -> list[dict[str, Any]]:
        """The committed blocks of a run that this one goes on with."""
        if self.journal is None or not any(self.folder.glob("*.safetensors*")):
            return []
        was = self.journal.read()
        if was is not None and self.journal.blocks:
            require_same_job(self.folder, was["job"], self.journal.job)
        return self.journal.blocks

    def _paths(self, shard: Shard) -> tuple[Path, Path]:
        """A shard's name, and the one that it has until it is complete."""
        return self.folder / shard.name, durable.temporary(self.folder / shard.name)

    def _check_space(self) -> None:
        """Require 5 % more than the weights, for the folder's other files."""
        there = [path for shard in self.shards for path in self._paths(shard) if path.exists()]
        need = sum(shard.nbytes for shard in self.shards) * 21 // 20
        if self.journal is not None:
            need += self.journal.room
            there += self.journal.folder.iterdir()
        with durable.io_errors(self.folder):
            durable.require_space(self.output, need, sum(path.stat().st_size for path in there))

    def _reserve(self, shard: Shard) -> None:
        """Create a shard of its final size with its head; later writes cannot run out of disk.

        One that is there already keeps its tensors.
        """
        path, unfinished = self._paths(shard)
        with durable.io_errors(path):
            if path.exists():
                path.rename(unfinished)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(unfinished, flags, 0o666)
            try:
                durable.allocate(fd, shard.nbytes)
                durable.write_all(fd, shard.head, 0)
                if not self._missing[shard.name]:
                    os.fsync(fd)
            finally:
                os.close(fd)
            if not self._missing[shard.name]:
                durable.settle(path)

    def _leave(self, error: BaseException | None) -> None:
        if self._lock is None:
            return
        if not self._complete and not self._worth_keeping(error):
            remove_claimed(self.folder)
            if self.journal is not None:
                self.journal.remove()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def _worth_keeping(self, error: BaseException | None) -> bool:
        """Whether another run could go on where this one ended.

        It could not where the same inputs would fail again, or what was written is wrong.
        """
        if error is None or self.journal is None or not self.journal.blocks:
            return False
        return not isinstance(error, InputError | RefusedError | IntegrityError)


def _sums(folder: Path) -> str:
    """SHA-256 of every file, sorted by name, as `sha256sum -c --strict` reads it."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    kept = sorted(name for name, path in paths.items() if path.is_file() and name != MARKER)
    hashes = {name: hashing_now(paths[name]) for name in kept}
    return "".join(f"{digest.result()}  {name}\n" for name, digest in hashes.items())
