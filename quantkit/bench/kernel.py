"""The contract of a kernel, and the kernels that support a quantized weight on this device."""

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
    """A weight to multiply by: scheme, shape, dtype of the inputs, and device type.

    `capability`: CUDA's compute capability of a GPU.
    """

    scheme: Scheme
    out_features: int
    in_features: int
    dtype: torch.dtype
    device: str = "cpu"
    capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class Kernel:
    """One way to compute x @ W.T from the codes of W.

    refuses(facts): a sentence that states what the kernel does not support, or None.
    pack(qtensor, dtype): the kernel's own tensors: codes in integer, scales in float dtypes.
    multiply(x, parts): the product (rows, out_features) of x (rows, in_features), in x's dtype.
    """

    name: str
    refuses: Callable[[WeightFacts], str | None]
    pack: Callable[[QTensor, torch.dtype], Parts]
    multiply: Callable[[torch.Tensor, Parts], torch.Tensor]


def kernels() -> tuple[Kernel, ...]:
    """Every registered kernel, including those that do not run on this machine."""
    folder = "bench.kernels"
    return tuple(k for n in registry.names(folder) for k in registry.load(folder, n, "KERNELS"))


def fitting(facts: WeightFacts) -> tuple[Kernel, ...]:
    """The kernels that support a weight.

    Raises:
        RefusedError: no kernel does; the error lists the reason of each.
    """
    found = {kernel: kernel.refuses(facts) for kernel in kernels()}
    able = tuple(kernel for kernel, reason in found.items() if reason is None)
    if not able:
        shape = f"{facts.out_features} x {facts.in_features}"
        raise RefusedError(
            f"no kernel on this {facts.device} multiplies {facts.scheme.label()}, {shape}",
            why="; ".join(f"{kernel.name}: {reason}" for kernel, reason in found.items()),
            hint="--engine vllm, which has its own kernels",
        )
    return able


def device_is(facts: WeightFacts, device: str) -> str | None:
    """A sentence that states that a kernel needs `device`; None if the weight is there."""
    return None if facts.device == device else f"runs on {device}"
