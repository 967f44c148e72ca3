"""Progress of long work, told to whoever asked."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """`done` of `total` steps of `stage`; `seconds_left` once it can be told."""

    stage: str
    done: int
    total: int
    detail: str = ""
    seconds_left: float | None = None


Report = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Tell nobody."""
