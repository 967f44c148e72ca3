"""Progress of long work, for whoever asked."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """What a `report` callback gets after each step of a long run.

    `done` of `total` steps of `stage` are done, the last of them on `detail` (a block, a module).
    `seconds_left` is of the stage, None while it is not known. Stages follow one another; those of
    a part of a larger run carry its name: `mixed: quantize`.
    """

    stage: str
    done: int
    total: int
    detail: str = ""
    seconds_left: float | None = None


Report = Callable[[Progress], None]
"""Called after each step, in the thread that does the work."""


def silent(_: Progress) -> None:
    """Report to nobody."""
