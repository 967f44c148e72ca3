"""What all parts of a run share, said once: the device, trust in code of a model, and progress."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quantkit.core.progress import Report, part_of, silent


@dataclass(frozen=True)
class Session:
    """Where a run computes, whether code of the model's folder may run, and who sees progress.

    `device` is a name that torch knows ("cpu", "cuda:1"). "auto" is only for the public functions,
    and for runs that go to another machine: `pipeline.start.device_of` resolves it.
    """

    device: str = "cpu"
    trust_remote_code: bool = False
    report: Report = silent

    def on(self, device: str) -> Session:
        """The same session on another device."""
        return replace(self, device=device)

    def under(self, part: str) -> Session:
        """The same session, its stages reported as `part: stage`."""
        return replace(self, report=part_of(part, self.report))
