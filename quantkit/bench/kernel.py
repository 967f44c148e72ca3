"""What a kernel is, and which of them can multiply by a given quantized weight here."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from quantkit.core import registry
from quantkit.core.errors import RefusedError
from quantkit.core.scheme import Scheme
from quantkit.grid.qtensor import QTensor

Parts = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class WeightFacts:
    """A weight to multiply by: its scheme and shape, the dtype of the inputs, "cpu" or "cuda"."""

    scheme: Scheme
    out_features: int
    in_features: int
    dtype: torch.dtype
    device: str = "cpu"


@dataclass(frozen=True)
class Kernel:
    """One way to compute x @ W.T from the codes of W.

    refuses(facts): a sentence saying what it cannot do, or None.
    pack(qtensor, dtype): what it keeps of a weight: codes in integer dtypes, scales in floats.
    multiply(x, parts): the product (rows, out_features) of x (rows, in_features), in x's dtype.
    """

    name: str
    refuses: Callable[[WeightFacts], str | None]
    pack: Callable[[QTensor, torch.dtype], Parts]
    multiply: Callable[[torch.Tensor, Parts], torch.Tensor]


def kernels() -> tuple[Kernel, ...]:
    """Every kernel that quantkit knows of, whether it runs here or not."""
    folder = "bench.kernels"
    return tuple(k for n in registry.names(folder) for k in registry.load(folder, n, "KERNELS"))


def fitting(facts: WeightFacts) -> tuple[Kernel, ...]:
    """The kernels that can multiply by a weight.

    Raises:
        RefusedError: there is none; it says what stands in the way of each.
    """
    found = {kernel: kernel.refuses(facts) for kernel in kernels()}
    able = tuple(kernel for kernel, reason in found.items() if reason is None)
    if not able:
        shape = f"{facts.out_features} x {facts.in_features}"
        raise RefusedError(
            f"no kernel on this {facts.device} multiplies {facts.scheme.label()}, {shape}",
            why="; ".join(f"{kernel.name}: {reason}" for kernel, reason in found.items()),
            hint="--engine vllm, which has kernels of its own",
        )
    return able


def device_is(facts: WeightFacts, device: str) -> str | None:
    """The sentence for a kernel of `device`, None where the weight is there."""
    return None if facts.device == device else f"runs on {device}"
