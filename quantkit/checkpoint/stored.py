"""Storage locations: of a model's folder, of a tensor in a safetensors file."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# Bytes of one element, in the order of safetensors' own enumeration. Its writer sorts by it, last
# first, so that each tensor starts at a multiple of its element's size.
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


class TensorInfo(NamedTuple):  # made six times as fast as a frozen dataclass
    """Where a tensor lies: bytes [start, end) of file `shard`; `dtype` as safetensors names it."""

    dtype: str
    shape: tuple[int, ...]
    shard: str
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return self.end - self.start

    def item(self, index: int | slice) -> "TensorInfo":
        """Where item `index` of the first dimension lies, or a slice of them with both bounds."""
        count, *shape = self.shape
        size = self.nbytes // count
        first, last = (index, index + 1) if isinstance(index, int) else (index.start, index.stop)
        kept = shape if isinstance(index, int) else (last - first, *shape)
        start, end = self.start + first * size, self.start + last * size
        return self._replace(shape=tuple(kept), start=start, end=end)


@dataclass(frozen=True)
class Source:
    """A model's folder; `id` and `revision` (a commit's 40 hex digits) for a hub model."""

    folder: Path
    id: str | None = None
    revision: str | None = None
