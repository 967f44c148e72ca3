"""What every part of a stored result is made of."""

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A part of a result."""

    model_config = ConfigDict(extra="ignore", frozen=True)
