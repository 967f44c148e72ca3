"""Linears that the engine makes one of are in different schemes, or only some are quantized."""

from collections.abc import Iterator

from quantkit.core.check import Check, Fault
from quantkit.planning.serve.served import Served

FUSING = ("vllm", "sglang")
"""Engines that make one linear of q, k, v, and of gate and up."""


def find(served: Served) -> Iterator[Fault]:
    """Each group of which the members differ."""
    if served.engine.name not in FUSING:
        return
    for name, facts in served.linears.items():
        if not facts.fused or name != facts.fused[0]:
            continue
        schemes = [served.schemes[member] for member in facts.fused]
        if len(set(schemes)) > 1:
            told = ", ".join(
                f"`{member.rpartition('.')[2]}` is {scheme.label() if scheme else 'dense'}"
                for member, scheme in zip(facts.fused, schemes, strict=True)
            )
            yield Fault(
                name.rpartition(".")[0],
                f"{served.engine.summary} makes one linear of some in "
                f"`{name.rpartition('.')[0]}` that are in different schemes: {told}",
            )


CHECK = Check(
    "engine",
    "linears that the engine makes one of are in different schemes",
    "quantize them alike, or leave all of them out",
    find,
)
