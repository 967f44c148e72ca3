"""Zero points are off by one, such as those of GPTQ's version 2 under the label of version 1."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from quantkit.core.check import Check, Fault
from quantkit.core.scheme import Scheme
from quantkit.grid.packing import pack
from quantkit.grid.qtensor import QTensor
from quantkit.model.stored_weights import StoredWeight

OFFSETS = {"gptq": 1, "gptq-v2": 0}
"""What each version takes off a zero point."""
BITS = 4
"""Widest codes of which one step is more than the mean of a weight."""
NEAR = 0.2
"""Steps by which the mean weight may be off 0."""
FEWEST = 4096
"""Weights of which the mean says something."""


def find(weight: StoredWeight) -> Iterator[Fault]:
    """The weight, where zero points one higher or lower are the right ones."""
    offset, scheme = OFFSETS.get(weight.format or ""), weight.scheme
    if offset is not None and scheme is not None and scheme.symmetric:
        yield from _symmetric(weight, scheme, offset)
        return
    qtensor = weight.qtensor
    if qtensor is None or qtensor.zeros is None:
        return
    for shift in (-1, 1):
        moved = replace(qtensor, zeros=(qtensor.zeros.int() + shift).to(torch.uint8))
        right = weight.reference
        if (weight.is_wrong and right is not None and right(moved)) or (
            right is None and _centred(moved) and _off_by_one(qtensor, shift)
        ):
            off = "high" if shift < 0 else "low"
            which = _other(weight.format, shift)
            yield Fault(
                weight.name,
                f"the zero points of `{weight.name}` are one too {off}{which}",
            )
            return


def _symmetric(weight: StoredWeight, scheme: Scheme, offset: int) -> Iterator[Fault]:
    """Symmetric zero points are all the middle: those of the other version are off by one."""
    words, middle = weight.tensors.get("qzeros"), 1 << (scheme.bits - 1)
    if words is None or weight.facts is None:
        return
    other = torch.full((1, weight.facts.out_features), middle - (1 - offset), dtype=torch.uint8)
    if bool((words == pack(other, scheme.bits)).all()):
        version, label = (2, 1) if offset else (1, 2)
        yield Fault(
            weight.names["qzeros"],
            f"`{weight.names['qzeros']}` has the zero points of GPTQ version {version}, and "
            f"config.json says version {label}",
        )


def _other(output: str | None, shift: int) -> str:
    """Which version of GPTQ they would be right in, where that is what differs."""
    if output == "gptq" and shift < 0:
        return ": they are those of version 2, and config.json says version 1"
    if output == "gptq-v2" and shift > 0:
        return ": they are those of version 1, and config.json says version 2"
    return ""


def _mean(qtensor: QTensor) -> float:
    """The mean weight in steps."""
    assert qtensor.zeros is not None
    return float(qtensor.codes.float().mean() - qtensor.zeros.float().mean())


def _centred(qtensor: QTensor) -> bool:
    enough = qtensor.codes.numel() >= FEWEST and qtensor.scheme.bits in (3, BITS)
    return enough and abs(_mean(qtensor)) < NEAR


def _off_by_one(qtensor: QTensor, shift: int) -> bool:
    return abs(_mean(qtensor) - shift) < NEAR


CHECK = Check(
    "weights",
    "zero points are off by one, as those of the other version of GPTQ are",
    "set `checkpoint_format` to the version that was written, or write the zero points again",
    find,
    2,
)
