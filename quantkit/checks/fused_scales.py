"""Linears that the engine makes one of have different global scales."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.planning.serve.served import Served

FUSING = ("vllm", "sglang")
"""Engines that keep one such scale for q, k, v, and one for gate and up: the largest."""


def find(served: Served) -> Iterator[Fault]:
    """Each group of which the members differ: all but one of them are loaded wrong."""
    if served.engine.name not in FUSING:
        return
    for name, facts in served.linears.items():
        if not facts.fused or name != facts.fused[0]:
            continue
        found = {
            each: served.global_scales[each] for each in facts.fused if each in served.global_scales
        }
        if len(set(found.values())) > 1:
            told = ", ".join(
                f"`{each.rpartition('.')[2]}` has {value:g}" for each, value in found.items()
            )
            home = name.rpartition(".")[0]
            yield Fault(
                home,
                f"{served.engine.summary} keeps one global scale for some in `{home}` that have "
                f"their own: {told}",
            )


CHECK = Check(
    "engine",
    "linears that the engine makes one of have different global scales",
    "quantize them again with one global scale",
    find,
)
