"""A model folder: the tensors in its files, one in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit.checkpoint.coded import Coded, Coding
from quantkit.checkpoint.files import Fingerprint, changed, inside, opened, there_before
from quantkit.checkpoint.hashes import hashing
from quantkit.checkpoint.quantization import dense_dtype, plain_config
from quantkit.checkpoint.stored import DTYPE_BYTES, TensorInfo
from quantkit.core.errors import InputError

if TYPE_CHECKING:
    import torch

    from quantkit.checkpoint.tensors import Lend


@dataclass(frozen=True)
class Checkpoint:
    """A model folder with validated headers.

    `config` is the content of config.json, `names` every tensor of every shard, `files` the other
    files (sorted, relative; a subfolder is named once, with a slash at its end).

    What is `coded` in it is read dense: `names` and `config` are then those of the dense model, and
    `stored` has the tensors of the shards.

    `hashed`: the first read of a tensor starts the hash of its file, which then is still in memory.
    `pinned`: tensors are read for copies to a GPU. `lend`: the memory that they are read into.
    `real`: the paths of files that were read, without links.
    """

    folder: Path
    config: dict[str, Any]
    names: dict[str, TensorInfo]
    files: tuple[str, ...]
    fingerprints: dict[str, Fingerprint]
    coding: Coding = field(default_factory=Coding)
    stored: Mapping[str, TensorInfo] = field(default_factory=dict)
    hashed: bool = False
    pinned: bool = False
    lend: Lend | None = None
    real: dict[str, Path] = field(default_factory=dict, compare=False, repr=False)

    def tensor(self, name: str, item: int | slice | None = None) -> torch.Tensor:
        """Tensor `name` in its stored shape and dtype, bit for bit, in CPU memory of its own.

        A coded one is decoded. With `item` only that one of its first dimension is read, or a slice
        of them with both bounds. The caller may modify it.

        Raises:
            KeyError: no tensor of that name.
            InputError: the parts of a coded one do not fit together.
            IntegrityError: the source changed since it was opened.
            ResourceError: the disk fails.
        """
        coded = self.coding.tensors.get(name)
        if coded is None:
            return self._read(name, item)
        if isinstance(item, slice):
            return self.tensor(name)[item].clone()
        if item is None and len(coded.shape) > 2:  # a stack of matrices
            import torch

            return torch.stack([self.tensor(name, each) for each in range(coded.shape[0])])
        return self.decode(name, {part: self._part(coded, part, item) for part in coded.parts})

    def decode(self, name: str, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The coded tensor `name`, or an item of it, from its parts; raises as `tensor`."""
        coded = self.coding.tensors[name]
        try:
            return coded.decode(parts, self.names[name].dtype)
        except InputError as error:
            raise InputError(
                f"`{name}` cannot be decoded: {error.what}, in {self.shards(coded.parts.values())}",
                why=error.why,
                hint=error.hint,
            ) from error

    def lending(self, lend: Lend) -> Checkpoint:
        """The same folder; its tensors as they are stored are read into memory that is lent."""
        return replace(self, lend=lend)

    def as_stored(self, name: str) -> torch.Tensor:
        """Tensor `name` of the files as it lies there, codes included; raises as `tensor`."""
        return self._read(name, None)

    def shards(self, names: Iterable[str]) -> str:
        """The files that hold stored tensors, for people."""
        stored = self.stored or self.names
        paths = {self.folder / stored[name].shard for name in names if name in stored}
        return ", ".join(f"`{path}`" for path in sorted(paths))

    def _part(self, coded: Coded, part: str, item: int | None) -> torch.Tensor:
        """A stored tensor, of a stack the item's; what all items share is read whole."""
        name = coded.parts[part]
        shape = self.stored[name].shape
        stacked = item is not None and len(shape) > 0 and shape[0] == coded.shape[0]
        return self._read(name, item if stacked else None)

    def _read(self, name: str, item: int | slice | None) -> torch.Tensor:
        from quantkit.checkpoint.tensors import read_tensor

        info = (self.stored or self.names)[name]
        info = info if item is None else info.item(item)
        if self.hashed:
            hashing(self.folder / info.shard, self.fingerprints[info.shard])
        with there_before(self.folder / info.shard):
            path = self.real.get(info.shard) or inside(self.folder, info.shard)
            self.real[info.shard] = path  # another file in its place has another fingerprint
            expected = self.fingerprints[info.shard]
            return read_tensor(path, name, info, expected, pinned=self.pinned, lend=self.lend)

    def decoded(self, coding: Coding) -> Checkpoint:
        """The same files as a dense model: its tensors, and its config without a quantization."""
        dtype = dense_dtype(self.config)
        gone = coding.parts | set(coding.dropped)
        names = {name: info for name, info in self.names.items() if name not in gone}
        for name, each in coding.tensors.items():
            codes = self.names[next(iter(each.parts.values()))]
            size = prod(each.shape) * DTYPE_BYTES[dtype]
            names[name] = TensorInfo(dtype, each.shape, codes.shard, 0, size)
        config = plain_config(self.config)
        return replace(self, names=names, config=config, coding=coding, stored=self.names)

    def sha256(self, name: str) -> str:
        """SHA-256 of the weight file or config `name`, read once as long as it stays the same.

        Raises:
            IntegrityError: the source changed since it was opened.
        """
        with there_before(self.folder / name):
            return hashing(self.folder / name, self.fingerprints[name]).result()

    def check_unchanged(self) -> None:
        """Check that config and shards are still the files that were opened.

        Raises:
            IntegrityError: one of them changed.
            ResourceError: one of them is missing.
        """
        for name, expected in self.fingerprints.items():
            with (
                there_before(self.folder / name),
                opened(inside(self.folder, name)) as (_, fingerprint),
            ):
                if fingerprint != expected:
                    raise changed(self.folder / name)
