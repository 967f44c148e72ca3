"""A planned number of bytes beside the rule it came from, which `plan --explain` prints."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """`bytes` that `name` takes, and the formula and source it was computed by, for people."""

    name: str
    bytes: int
    rule: str
