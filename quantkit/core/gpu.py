"""A GPU as plans see it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gpu:
    """One GPU: `memory` in bytes as torch reports it, `bandwidth` in bytes per second.

    `rates`: dense operations per second by number format. `pcie`: bytes per second to the host in
    one direction; `nvlink`: in both together. `capability`: CUDA's, or AMD's architecture.
    """

    name: str
    memory: int
    bandwidth: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    capability: str | None = None
    pcie: float | None = None
    nvlink: float | None = None
    source: str = "as stated"
    estimated: tuple[str, ...] = ()
    note: str = ""
