"""Records of a build: each linear, tensor and file of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
class Built:
    """Records of the quantized linears, and the disposition of each tensor and file of the source.

    `expert_tokens` are the calibration tokens that were sent to each expert, by the full name of
    the module that holds those of a layer. `bytes` is the size of all weight files of the artifact,
    which `artifact` reads.
    """

    modules: tuple[ModuleRecord, ...]
    expert_tokens: dict[str, tuple[int, ...]]
    ledger: dict[str, str]
    side_files: dict[str, str]
    bytes: int
    artifact: OpenModel
