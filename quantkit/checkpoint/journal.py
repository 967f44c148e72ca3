"""The journal of an unfinished run: the blocks that are on disk for good, and what the next reads.

`<output>.journal` contains `journal.jsonl`, of which each line is appended and synced as a whole,
and the hidden states after the last block. A line begins with the SHA-256 of itself and of all
before it; the first states what the run is, each other one a block.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit.checkpoint import durable, files
from quantkit.checkpoint.stored import DTYPE_BYTES, TensorInfo
from quantkit.core.errors import IntegrityError, RefusedError

if TYPE_CHECKING:
    import torch

LINES = "journal.jsonl"
SCHEMA = "quantkit.journal/1"


Kept = Mapping[str, Any]
"""Where tensors lie that a journal keeps: the file, its SHA-256, dtypes and shapes."""


def journal_folder(output: Path) -> Path:
    """Where the journal of a run into `output` lies."""
    return output.parent / f"{output.name}.journal"


def unfinished(output: Path) -> tuple[dict[str, Any], int] | None:
    """How the unfinished run into `output` was asked for, and its blocks; None without one.

    Raises:
        IntegrityError: its journal is damaged.
    """
    journal = Journal(output, {})
    found = journal.read()
    return None if found is None else (found["command"] or {}, len(journal.blocks))


class Journal:
    """The blocks of a run that need not be computed again.

    `job` is what must be equal for a run to go on with another's blocks, `command` how it was
    asked for. `room`: bytes that it takes at most. `blocks` are the committed ones, once `read`.
    """

    def __init__(
        self,
        output: Path,
        job: Mapping[str, Any],
        command: Mapping[str, Any] | None = None,
        room: int = 0,
    ) -> None:
        self.folder = journal_folder(output)
        self.job, self.command, self.room = job, command, room
        self.blocks: list[dict[str, Any]] = []
        self._chain = ""
        self._length = 0
        self._unsynced: Path | None = None

    def read(self) -> dict[str, Any] | None:
        """Read the committed blocks; returns what the run is, None where nothing was begun.

        A last line that a kill has torn is dropped.

        Raises:
            IntegrityError: another line is not what was written.
        """
        path = self.folder / LINES
        self.blocks, self._chain, self._length = [], "", 0
        if not path.is_file():
            return None
        lines = path.read_bytes().split(b"\n")
        values = []
        for number, line in enumerate(lines[:-1]):  # what follows the last newline is torn
            digest, _, text = line.partition(b" ")
            if digest.decode("ascii", "replace") != self._digest(text):
                if number == len(lines) - 2:
                    break
                raise IntegrityError(f"line {number + 1} of `{path}` is damaged", hint=_anew(path))
            self._chain, self._length = self._digest(text), self._length + len(line) + 1
            values.append(json.loads(text))
        if not values or values[0].get("schema") != SCHEMA:
            return None
        self.blocks = values[1:]
        return dict(values[0])

    def begin(self) -> None:
        """Begin anew, with no block."""
        with durable.io_errors(self.folder):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            durable.sync_folder(self.folder.parent)
        self.blocks, self._chain, self._length = [], "", 0
        self._append({"schema": SCHEMA, "job": self.job, "command": self.command})

    def keep(self, tensors: Iterable[torch.Tensor | None]) -> Kept:
        """Write what the next block reads, of any shapes and dtypes; returns what finds it again.

        `tensors` are gone through twice, one in memory at a time. What is written counts once a
        block is committed with it.

        Raises:
            ResourceError: the disk is full or fails.
        """
        from quantkit.checkpoint.dtypes import DTYPE_NAMES
        from quantkit.checkpoint.tensors import as_bytes

        size = sum(0 if each is None else each.nbytes for each in tensors)
        if not size:
            return {}
        path = self.folder / f"hidden-{len(self.blocks) + 1}"
        digest = hashlib.sha256()
        specs: list[list[Any] | None] = []
        with durable.io_errors(path):
            path.unlink(missing_ok=True)
            durable.require_space(path, size)
            fd = durable.create(path)
            try:
                for tensor in tensors:
                    if tensor is None:
                        specs.append(None)
                        continue
                    specs.append([DTYPE_NAMES[tensor.dtype], list(tensor.shape)])
                    digest.update(data := as_bytes(tensor))
                    durable.write_all(fd, data)
            finally:
                os.close(fd)
        self._unsynced = path
        return {"file": path.name, "sha256": digest.hexdigest(), "tensors": specs}

    def kept(self) -> Iterator[torch.Tensor | None]:
        """What `keep` was given for the last block, each read when it is asked for.

        Raises:
            IntegrityError: it is not what was written, which is found at once.
        """
        found = self.blocks[-1]["hidden"]
        path = self.folder / found.get("file", "")
        if found and (not path.is_file() or files.sha256(path) != found["sha256"]):
            raise IntegrityError(f"`{path}` is not what was written", hint=_anew(path))
        return _tensors(path, found["tensors"] if found else [])

    def commit(self, block: dict[str, Any]) -> None:
        """Record a block of which everything else is synced; `hidden` of it is what `keep` gave.

        Raises:
            ResourceError: the disk is full or fails.
        """
        with durable.io_errors(self.folder):
            if self._unsynced is not None:
                durable.sync_file(self._unsynced)
                durable.sync_folder(self.folder)
                self._unsynced = None
        self._append(block)
        self.blocks.append(block)
        needed = {LINES, block["hidden"].get("file")}
        with durable.io_errors(self.folder):
            for path in self.folder.iterdir():
                if path.name not in needed:
                    path.unlink()

    def remove(self) -> None:
        """Forget the run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _append(self, value: Mapping[str, Any]) -> None:
        text = json.dumps(value, ensure_ascii=True).encode("ascii")
        digest = self._digest(text)
        line = b"%s %s\n" % (digest.encode("ascii"), text)
        path = self.folder / LINES
        with durable.io_errors(path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            try:
                os.ftruncate(fd, self._length)  # of a line that was torn
                durable.write_all(fd, line, self._length)
                os.fsync(fd)
            finally:
                os.close(fd)
            if not self._length:
                durable.sync_folder(self.folder)
        self._chain, self._length = digest, self._length + len(line)

    def _digest(self, text: bytes) -> str:
        return hashlib.sha256(self._chain.encode("ascii") + text).hexdigest()


def _tensors(path: Path, specs: Iterable[list[Any] | None]) -> Iterator[torch.Tensor | None]:
    """The tensors that lie in a file one after the other, by their dtypes and shapes."""
    from quantkit.checkpoint.tensors import read_tensor

    offset = 0
    for spec in specs:
        if spec is None:
            yield None
            continue
        end = offset + math.prod(spec[1]) * DTYPE_BYTES[spec[0]]
        info = TensorInfo(spec[0], tuple(spec[1]), path.name, offset, end)
        with files.opened(path) as (_, fingerprint):
            pass
        yield read_tensor(path, path.name, info, fingerprint)
        offset = end


def require_same_job(unfinished: Path, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that a run may go on with the blocks of another one in folder `unfinished`.

    Raises:
        IntegrityError: the source is another one by now.
        RefusedError: anything else that the bytes depend on is.
    """
    changed = [key for key in {**was, **now} if was.get(key) != now.get(key)]
    if not changed:
        return
    kind = IntegrityError if "source" in changed else RefusedError
    raise kind(
        f"`{unfinished}` is an unfinished run, which cannot go on",
        why="; ".join(
            f"{key} differs: {_difference(was.get(key), now.get(key))}" for key in changed
        ),
        hint=f"rm -r {shlex.quote(str(unfinished))} to start anew, or choose another -o",
    )


def _difference(was: Any, now: Any) -> str:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
        return ", ".join(f"{key} ({_difference(was.get(key), now.get(key))})" for key in keys)
    return f"{_shown(was)} there, {_shown(now)} here"


def _shown(value: Any) -> str:
    return str(value)[:40]


def _anew(path: Path) -> str:
    return f"rm -r {path.parent}, and the run starts anew"
