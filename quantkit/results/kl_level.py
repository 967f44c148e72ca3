"""How large a KL is: against its own noise and usual figures, and what would make it smaller."""

import math
import re

from quantkit.results.level import KlLevel, Level
from quantkit.results.schema import FLOOR_FACTOR, EvalResult

LEVELS: tuple[tuple[float, Level, str], ...] = (
    (0.02, "small", "KL {kl} is small: under {limit} few uses tell the two apart"),
    (0.1, "usual", "KL {kl} is usual for 4 bits: between 0.02 and {limit}"),
    (math.inf, "large", "KL {kl} is large: 4 bits usually stay under 0.1"),
)
"""Upper limit of the mean KL in nats, name of the level, and what is said of it.

4-bit builds of models from 0.1e9 to 8e9 parameters lie between the limits (docs/evaluation.md).
"""
SMALLER_GROUP = {"channel": "128", "g128": "64", "g64": "32"}
"""The next smaller group size, by that of a scheme's label."""
MORE_BYTES = 1.25
"""Of the present weight files, for parts that get 8 bits."""


def kl_level(result: EvalResult) -> KlLevel | None:
    """The level of the result's mean KL, and with a large one what to try; None without a KL."""
    kl = result.kl
    if kl is None or kl.mean is None or result.status != "valid":
        return None
    if kl.mean < FLOOR_FACTOR * (kl.floor_mean or 0.0):
        meaning = "not distinguishable from the reference: under three times its own noise"
        return KlLevel(level="noise", meaning=meaning)
    limit, level, said = next(row for row in LEVELS if kl.mean < row[0])
    steps = _steps(result) if level == "large" else []
    return KlLevel(level=level, meaning=said.format(kl=f"{kl.mean:.2g}", limit=limit), next=steps)


def _steps(result: EvalResult) -> list[str]:
    """Options and commands that lower the KL, the cheapest in bytes first."""
    artifact, steps = result.artifact, []
    if artifact.method == "rtn":
        steps.append("--method gptq")
    groups = re.findall(r"W\d+ (channel|g\d+)", artifact.scheme or "")
    smaller = [SMALLER_GROUP[group] for group in groups if group in SMALLER_GROUP]
    if smaller:
        steps.append(f"--group-size {min(smaller, key=int)}")
    if artifact.bytes:
        size = f"{MORE_BYTES * artifact.bytes / 1e6:.0f}MB"
        steps.append(f"quantkit fit MODEL -o OUT --size {size} --bits 4,8")
    return steps
