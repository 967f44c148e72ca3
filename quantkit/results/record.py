"""What every part of a stored result is made of."""

from pydantic import BaseModel, ConfigDict

Interval = tuple[float, float]
"""The ends of a 95 % interval."""


class Record(BaseModel):
    """A part of a result."""

    model_config = ConfigDict(extra="ignore", frozen=True)
