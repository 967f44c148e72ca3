"""Progress of long work, told to whoever asked."""

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Progress:
    """`done` of `total` steps of `stage`.

    `fraction` is the share of the stage's work that is done, where steps differ much in length.
    """

    stage: str
    done: int
    total: int
    detail: str = ""
    fraction: float | None = None


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Tell nobody."""


def part_of(whole: str, report: Report) -> Report:
    """`report` for stages that are parts of `whole`: `forward` is `evaluate: forward` to it."""
    return lambda progress: report(replace(progress, stage=f"{whole}: {progress.stage}"))
