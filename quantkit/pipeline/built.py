"""Records of a build: each linear, tensor and file of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from quantkit.grid.kv_cache import CacheScales

if TYPE_CHECKING:
    from quantkit.model.opened import OpenModel


@dataclass(frozen=True)
class ModuleRecord:
    """The result for one linear; `codes_sha256` is that of its codes, scales and zero points."""

    name: str
    scheme: str
    loss: float | None
    notes: tuple[str, ...]
    codes_sha256: str


@dataclass(frozen=True)
class BlockRecord:
    """What is left of a finished block, and of several.

    `changed`: stored tensors that folding has changed. `expert_tokens` as in `Built`. `cache`:
    scales of keys and values by the full name of an attention. `peaks`: most bytes of memory by the
    full name of a block.
    """

    modules: tuple[ModuleRecord, ...] = ()
    changed: tuple[str, ...] = ()
    expert_tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    cache: Mapping[str, CacheScales] = field(default_factory=dict)
    peaks: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, later: BlockRecord) -> BlockRecord:
        return BlockRecord(
            (*self.modules, *later.modules),
            (*self.changed, *later.changed),
            {**self.expert_tokens, **later.expert_tokens},
            {**self.cache, **later.cache},
            {**self.peaks, **later.peaks},
        )

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON."""
        return asdict(self)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> BlockRecord:
        """The record that `to_dict` gave; further keys are left out."""
        modules = [ModuleRecord(**{**m, "notes": tuple(m["notes"])}) for m in found["modules"]]
        tokens = {name: tuple(counts) for name, counts in found["expert_tokens"].items()}
        cache = {name: CacheScales(**scales) for name, scales in found["cache"].items()}
        return cls(tuple(modules), tuple(found["changed"]), tokens, cache, found["peaks"])


@dataclass(frozen=True)
class Built:
    """Records of the quantized linears, and the disposition of each tensor and file of the source.

    `expert_tokens` are the calibration tokens that were sent to each expert, by the full name of
    the module that holds those of a layer. `bytes` is the size of all weight files of the artifact,
    which `artifact` reads. `peaks`: most bytes of memory by the full name of a block.
    """

    modules: tuple[ModuleRecord, ...]
    expert_tokens: Mapping[str, tuple[int, ...]]
    ledger: dict[str, str]
    side_files: dict[str, str]
    bytes: int
    artifact: OpenModel
    peaks: Mapping[str, int] = field(default_factory=dict)
