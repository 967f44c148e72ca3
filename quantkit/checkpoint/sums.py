"""SHA256SUMS of a folder against its files."""

import shlex
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from quantkit.checkpoint.filenames import EDITED, SUMS
from quantkit.checkpoint.files import inside
from quantkit.checkpoint.hashes import hashing_now
from quantkit.core.errors import InputError, IntegrityError

LONGEST = 2**20
"""Bytes of a list of sums."""


@dataclass(frozen=True)
class Sums:
    """What SHA256SUMS states, and the files of the folder.

    `told`: files whose fault is told already. `error`: why it cannot be read.
    """

    folder: Path
    stated: Mapping[str, str]
    told: frozenset[str] = field(default_factory=frozenset)
    error: str | None = None

    def hashing(self, name: str) -> Future[str]:
        """The hash of a file, which threads begin to compute; raises as `hashes.hashing_now`."""
        return hashing_now(inside(self.folder, name), waited_for=True)

    def differing(self) -> Iterator[str]:
        """Each file that is there and has another hash."""
        there = [name for name in self.stated if (self.folder / name).is_file()]
        found = {name: self.hashing(name) for name in there}
        for name, digest in found.items():
            if digest.result() != self.stated[name]:
                yield name


def read_sums(folder: Path) -> dict[str, str]:
    """Each file that SHA256SUMS names -> its hash; empty where there is no such file.

    Raises:
        InputError: a line is not that of `sha256sum`.
    """
    if not (folder / SUMS).is_file():
        return {}
    path = inside(folder, SUMS)
    text = path.read_bytes()[:LONGEST].decode("utf-8", "replace")
    found = {}
    for line in text.splitlines():
        digest, gap, name = line.partition("  ")
        plain = name and not name.startswith(("/", "../")) and "/../" not in name
        if len(digest) != 64 or not gap or not plain:
            raise InputError(f"`{folder / SUMS}` has the line {line[:80]!r}", why="it is no sum")
        found[name] = digest
    return found


def require_sums(folder: Path) -> None:
    """Check that the files of a folder have the hashes that its SHA256SUMS states, if it has one.

    Files that nothing is computed from, such as the model card, may have been edited.

    Raises:
        IntegrityError: one of them differs.
    """
    stated = {name: digest for name, digest in read_sums(folder).items() if name not in EDITED}
    for name in Sums(folder, stated).differing():
        raise IntegrityError(
            f"`{folder / name}` is not the file that was written",
            why=f"its hash differs from the one in `{SUMS}`",
            hint=f"quantkit verify {shlex.quote(str(folder))}",
        )
