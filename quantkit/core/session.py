"""The settings that all parts of a run share: device, trust, progress, ranks, memory limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quantkit.core.progress import Report, part_of, silent
from quantkit.core.ranks import ALONE, Ranks


@dataclass(frozen=True)
class Limits:
    """The most bytes that a run may take; None: what is free.

    `ram`: of a run on a CPU, with all that its processes hold. `vram`: of each GPU, what torch
    allocates there; CUDA's own memory comes on top.
    """

    ram: int | None = None
    vram: int | None = None


@dataclass(frozen=True)
class Session:
    """The device of a run, whether code in the model's folder may run, and the progress callback.

    `ranks`: the processes that share the work, of which this is one. `limits`: of their memory.

    `device` is a torch name ("cpu", "cuda:1"). "auto" is valid only in the public functions and in
    runs on another machine; `pipeline.start.device_of` resolves it.
    """

    device: str = "cpu"
    trust_remote_code: bool = False
    report: Report = silent
    ranks: Ranks = ALONE
    limits: Limits = Limits()

    def on(self, device: str) -> Session:
        """The same session on another device."""
        return replace(self, device=device)

    def among(self, ranks: Ranks) -> Session:
        """The same session as one of several ranks; the first one reports."""
        return replace(self, ranks=ranks, report=self.report if ranks.leads else silent)

    def under(self, part: str) -> Session:
        """The same session, its stages reported as `part: stage`."""
        return replace(self, report=part_of(part, self.report))
