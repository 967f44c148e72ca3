"""A planned number of bytes and its formula, which `plan --explain` prints."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """The `bytes` that `name` takes; `rule` is the formula and its source as text."""

    name: str
    bytes: int
    rule: str
