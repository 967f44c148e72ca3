"""The config calls a weight symmetric, and its zero points are not the middle."""

from collections.abc import Iterator

import torch

from quantkit.core.check import Check, Fault
from quantkit.grid.packing import pack, unpack
from quantkit.model.stored_weights import StoredWeight

OFFSETS = {"gptq": 1, "gptq-v2": 0}


def find(weight: StoredWeight) -> Iterator[Fault]:
    """How many zero points vLLM would pass over, as it does for symmetric weights."""
    offset, scheme, facts = OFFSETS.get(weight.format or ""), weight.scheme, weight.facts
    words = weight.tensors.get("qzeros")
    if offset is None or scheme is None or facts is None or words is None:
        return
    middle = (1 << (scheme.bits - 1)) - offset
    usual = pack(torch.full((1, facts.out_features), middle, dtype=torch.uint8), scheme.bits)
    if bool((words == usual).all()):
        return
    stored = unpack(words, scheme.bits, facts.out_features)
    name = weight.names["qzeros"]
    if scheme.symmetric:
        odd = int((stored != middle).sum())
        if odd:
            yield Fault(
                name,
                f"`{name}` has {odd:,} zero points of {stored.numel():,} that are not the middle, "
                "and config.json says `sym: true`",
            )
    elif offset and bool((stored == (1 << scheme.bits) - 1).any()):
        yield Fault(
            name,
            f"`{name}` has zero points of 0 or {1 << scheme.bits}, which engines read "
            "differently in version 1",
        )


CHECK = Check(
    "weights",
    "zero points that the config rules out, or that engines read differently",
    "use the config.json that belongs to these weights, or format gptq_v2",
    find,
    3,
)
