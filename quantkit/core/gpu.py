"""A GPU as plans see it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gpu:
    """One GPU: `memory` in bytes as torch sees it, `bandwidth` in bytes a second.

    `rates` are dense operations a second by number format; `pcie` is the link to the host, bytes a
    second in one direction, `nvlink` in both; `capability` is CUDA's, or AMD's architecture.
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
