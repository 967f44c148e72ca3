"""What became of a model: of each linear, tensor and file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quantkit.model.opened import OpenModel


@dataclass(frozen=True)
class ModuleRecord:
    """What became of one linear; `weight_sha256` is of the fp32 weight it dequantizes to."""

    name: str
    scheme: str
    loss: float | None
    notes: tuple[str, ...]
    weight_sha256: str


@dataclass(frozen=True)
class Built:
    """Records of the quantized linears, and what became of each tensor and file of the source.

    `bytes` is the size of all weight files of the artifact, which `artifact` reads.
    """

    modules: tuple[ModuleRecord, ...]
    ledger: dict[str, str]
    side_files: dict[str, str]
    bytes: int
    artifact: OpenModel
