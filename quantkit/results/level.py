"""The level of a KL, as a result holds it."""

from typing import Literal

from pydantic import Field

from quantkit.results.record import Record

Level = Literal["noise", "small", "usual", "large"]


class KlLevel(Record):
    """How large the mean KL is, in words, and with a large one what would make it smaller."""

    level: Level
    meaning: str
    next: list[str] = Field(default_factory=list)
