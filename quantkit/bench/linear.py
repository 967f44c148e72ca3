"""A linear that computes with quantized codes, and the choice of its kernel."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import torch
from torch import nn

from quantkit.bench.kernel import Kernel, WeightFacts, fitting
from quantkit.grid.qtensor import QTensor

TRIALS = 3
TOLERANCE: Mapping[torch.dtype, float] = {
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}
"""Bound of ||y - y'|| / ||y'||, y' the fp32 product with the dequantized weight (tested)."""


@dataclass(frozen=True)
class Workload:
    """The work for which a kernel is chosen: one prefill, then decode steps; rows are tokens."""

    prefill_rows: int = 512
    decode_rows: int = 1
    decode_steps: int = 128


class QuantizedLinear(nn.Module):
    """y = x @ W.T + b with only the codes and scales of W in memory."""

    def __init__(
        self, kernel: Kernel, qtensor: QTensor, dtype: torch.dtype, bias: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.out_features, self.in_features = qtensor.codes.shape
        for i, part in enumerate(kernel.pack(qtensor, dtype)):
            self.register_buffer(f"part{i}", part)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., out_features) of x (..., in_features), in the dtype of x."""
        rows = x.reshape(-1, self.in_features)
        product = self.kernel.multiply(rows, tuple(self.buffers(recurse=False)))
        if self.bias is not None:
            product = product + self.bias
        return product.view(*x.shape[:-1], self.out_features)


def choose_kernel(
    qtensor: QTensor,
    dtype: torch.dtype,
    load: Workload = Workload(),
) -> Kernel:
    """The fastest kernel for `load` of all that support `qtensor` (out_features, in_features).

    Raises:
        RefusedError: no kernel does.
    """
    device = qtensor.codes.device
    out_features, in_features = qtensor.codes.shape
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    facts = WeightFacts(qtensor.scheme, out_features, in_features, dtype, device.type, capability)
    candidates = fitting(facts)
    if len(candidates) == 1:
        return candidates[0]
    prefill = torch.randn(load.prefill_rows, facts.in_features, device=device).to(dtype)
    decode = prefill[: load.decode_rows].contiguous()

    best, least = candidates[0], float("inf")
    for kernel in candidates:
        parts = kernel.pack(qtensor, dtype)
        seconds = load.decode_steps * _least_seconds(partial(kernel.multiply, decode, parts))
        if seconds < least:
            seconds += _least_seconds(partial(kernel.multiply, prefill, parts))
        if seconds < least:
            best, least = kernel, seconds
    return best


def _least_seconds(work: Callable[[], torch.Tensor]) -> float:
    """The shortest of TRIALS runs: other programs only make a run longer."""
    found = []
    for _ in range(TRIALS + 1):
        started = perf_counter()
        if work().is_cuda:
            torch.cuda.synchronize()
        found.append(perf_counter() - started)
    return min(found[1:])
