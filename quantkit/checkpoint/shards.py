"""The layout of tensors in shards, computed before the first tensor exists.

The headers are what the safetensors library writes for the same tensors, byte for byte.
"""

import json
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantkit.checkpoint.filenames import SINGLE
from quantkit.checkpoint.stored import DTYPE_BYTES
from quantkit.core.facts import Layout

if TYPE_CHECKING:
    import torch

DEFAULT_SHARD_SIZE = 5 * 10**9
_RANK = {dtype: rank for rank, dtype in enumerate(DTYPE_BYTES)}
_METADATA = {"__metadata__": {"format": "pt"}}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that will be written; `dtype` is safetensors' name, such as "BF16" or "I32"."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def like(cls, name: str, tensor: "torch.Tensor") -> "TensorSpec":
        """The spec of `tensor`, of any shape and safetensors dtype; the meta device will do."""
        from quantkit.checkpoint.dtypes import DTYPE_NAMES

        return cls(name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def stored_bytes(self) -> int:
        """Upper bound of the bytes it adds to a file: offsets in a header have up to 15 digits."""
        return self.nbytes + len(_compact({self.name: _entry(self, 10**14, 10**14)}))


@dataclass(frozen=True)
class Shard:
    """One planned file: its head (size and header), and where the bytes of each tensor go."""

    name: str
    head: bytes
    specs: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the whole file in bytes."""
        return len(self.head) + sum(spec.nbytes for spec in self.specs)


def artifact_specs(source: Layout, replaced: Mapping[str, Layout]) -> list[TensorSpec]:
    """Every tensor of an artifact, in an order that does not depend on the source's shards.

    `source` contains the original's tensors by name, `replaced` the tensors that replace one.
    """
    planned: list[TensorSpec] = []
    for name in sorted(source, key=_natural):
        parts = replaced.get(name, {name: source[name]})
        planned += [TensorSpec(part, *stored) for part, stored in parts.items()]
    return planned


def beside(weight: str, layout: Layout) -> Layout:
    """The tensors of a linear by their full names, for the stored name of its weight."""
    return {stem(weight) + suffix: stored for suffix, stored in layout.items()}


def stem(weight: str) -> str:
    """The common prefix of the tensors that replace `weight`."""
    return weight.removesuffix("weight")


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts `layers.9` before `layers.10`."""
    return [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", name)]


def plan_shards(specs: Iterable[TensorSpec], max_shard_size: int) -> tuple[Shard, ...]:
    """Shards of at most `max_shard_size` bytes, filled in the order given.

    A tensor that is larger by itself gets a shard of its own. Inside a shard wider elements come
    first, so that every tensor starts at a multiple of its element's size, and names are sorted.
    """
    parts: list[list[TensorSpec]] = [[]]
    size = 0
    for spec in specs:
        cost = spec.stored_bytes
        if parts[-1] and size + cost > max_shard_size:
            parts.append([])
            size = 0
        size += cost + (0 if parts[-1] else _PRELUDE)
        parts[-1].append(spec)
    return tuple(_shard(_shard_name(i, len(parts)), part) for i, part in enumerate(parts))


def _shard_name(position: int, count: int) -> str:
    return SINGLE if count == 1 else f"model-{position + 1:05d}-of-{count:05d}.safetensors"


def _shard(name: str, part: Sequence[TensorSpec]) -> Shard:
    specs = sorted(part, key=lambda spec: (-_RANK[spec.dtype], spec.name))
    header: dict[str, object] = dict(_METADATA)
    at = 0
    for spec in specs:
        header[spec.name] = _entry(spec, at, at + spec.nbytes)
        at += spec.nbytes
    raw = _compact(header)
    raw += b" " * (-len(raw) % 8)  # the format aligns the data to 8 bytes
    head = struct.pack("<Q", len(raw)) + raw
    offsets, at = [], len(head)
    for spec in specs:
        offsets.append(at)
        at += spec.nbytes
    return Shard(name, head, tuple(specs), tuple(offsets))


def _entry(spec: TensorSpec, start: int, end: int) -> dict[str, object]:
    return {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [start, end]}


def _compact(header: Mapping[str, object]) -> bytes:
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


_PRELUDE = 8 + len(_compact(_METADATA)) + 8  # header size, metadata, padding
