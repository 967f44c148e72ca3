"""Base classes of stored results."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

Interval = tuple[float, float]
"""The ends of a 95 % interval."""


class Record(BaseModel):
    """A part of a result."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class MetricFigure(Record):
    """A figure of a registered metric without a field of its own in a result.

    A mean over tokens has a standard error and a 95 % interval; `better`: the better direction.
    """

    label: str
    unit: str
    better: Literal["lower", "higher"]
    value: float | None
    standard_error: float | None = None
    ci95: Interval | None = None
