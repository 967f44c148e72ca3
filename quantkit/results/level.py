"""The level of a KL, as part of a result."""

from typing import Literal

from pydantic import Field

from quantkit.results.record import Record

Level = Literal["noise", "small", "usual", "large"]


class KlLevel(Record):
    """The level of the mean KL, its description, and options to try if it is large."""

    level: Level
    meaning: str
    next: list[str] = Field(default_factory=list)
