"""Progress of long runs, as callbacks receive it."""

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Progress:
    """What a `report` callback receives after each step of a long run.

    `done` of `total` steps of `stage` are done; the last one was `detail` (a block, a module).
    `fraction` is the completed share of the stage's work, where steps differ much in length. Stages
    run one after the other; stages of a part of a larger run have its name: `mixed: quantize`.
    """

    stage: str
    done: int
    total: int
    detail: str = ""
    fraction: float | None = None


Report = Callable[[Progress], None]
"""Called after each step, in the thread that does the work."""


def silent(_: Progress) -> None:
    """Discard the progress."""


def part_of(whole: str, report: Report) -> Report:
    """`report` for a part of a run: stage `forward` is reported as `evaluate: forward`."""
    return lambda progress: report(replace(progress, stage=f"{whole}: {progress.stage}"))
