"""Progress of long work, for whoever asked."""

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Progress:
    """What a `report` callback gets after each step of a long run.

    `done` of `total` steps of `stage` are done, the last of them on `detail` (a block, a module).
    `fraction` is the share of the stage's work that is done, where steps differ much in length.
    Stages follow one another; those of a part of a larger run carry its name: `mixed: quantize`.
    """

    stage: str
    done: int
    total: int
    detail: str = ""
    fraction: float | None = None


Report = Callable[[Progress], None]
"""Called after each step, in the thread that does the work."""


def silent(_: Progress) -> None:
    """Report to nobody."""


def part_of(whole: str, report: Report) -> Report:
    """`report` for stages that are parts of `whole`: `forward` is `evaluate: forward` to it."""
    return lambda progress: report(replace(progress, stage=f"{whole}: {progress.stage}"))
