"""The level of a KL, from its noise floor and fixed limits, and options that would lower it."""

import math
import re

from quantkit.results.level import KlLevel, Level
from quantkit.results.schema import FLOOR_FACTOR, EvalResult

LEVELS: tuple[tuple[float, Level, str], ...] = (
    (0.02, "small", "KL {kl} is small: under {limit}"),
    (0.1, "usual", "KL {kl} is usual for 4 bits: between 0.02 and {limit}"),
    (math.inf, "large", "KL {kl} is large: 0.1 or more"),
)
"""Upper limit of the mean KL in nats, name of the level, and its description.

The limits are round numbers, not the result of a study. KL depends on model and text; known 4-bit
builds lie on both sides of them:
- SmolLM2-135M on wikitext-2: gptq g64 0.077, nf4 0.123, awq g64 0.174, rtn g64 0.219, rtn channel
  0.434 (benchmarks/results.md);
- Qwen3.8-27B g128 on openwebtext: 0.019 to 0.029 (auto-round, docs/neuqi_acc.md);
- Llama-3.1-8B on GPQA responses: 0.0048 to 0.0119 (published with cyankiwi AWQ 26.05).
"""
SMALLER_GROUP = {"channel": "128", "g128": "64", "g64": "32"}
"""The next smaller group size, by the group size in a scheme's label."""
MORE_BYTES = 1.25
"""Proposed size for `fit` with 8 bits for some parts, as a multiple of the present files."""


def kl_level(result: EvalResult) -> KlLevel | None:
    """The level of the result's mean KL, with options to try if it is large; None without a KL."""
    kl = result.kl
    if kl is None or kl.mean is None or result.status != "valid":
        return None
    if kl.mean < FLOOR_FACTOR * (kl.floor_mean or 0.0):
        meaning = "not distinguishable from the reference: under three times its own noise"
        return KlLevel(level="noise", meaning=meaning)
    limit, level, text = next(row for row in LEVELS if kl.mean < row[0])
    steps = _steps(result) if level == "large" else []
    return KlLevel(level=level, meaning=text.format(kl=f"{kl.mean:.2g}", limit=limit), next=steps)


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
