"""torch's matrix product with 8-bit weights that have one scale for an output."""

import torch

from quantkit.bench.kernel import Kernel, Parts, WeightFacts
from quantkit.grid.qtensor import QTensor


def _refuses(facts: WeightFacts) -> str | None:
    scheme = facts.scheme
    if scheme.grid != "int" or scheme.bits != 8 or scheme.activation:
        return "multiplies 8-bit integers by unquantized inputs"
    if scheme.group_size is not None:
        return "has one scale for an output, not one for a group"
    if facts.device == "cuda" and facts.dtype != torch.bfloat16:
        return "needs bf16 inputs"
    return None


def _pack(qtensor: QTensor, dtype: torch.dtype) -> Parts:
    codes = (qtensor.codes ^ 128).view(torch.int8)  # code - 128
    scales = qtensor.scales[:, 0].float()
    if qtensor.zeros is None:
        return codes, scales.to(dtype)
    return codes, scales.to(dtype), (128 - qtensor.zeros[:, 0].float()) * scales


def _multiply(x: torch.Tensor, parts: Parts) -> torch.Tensor:
    product = torch._weight_int8pack_mm(x, parts[0], parts[1])  # noqa: SLF001 - torch's name
    if len(parts) == 2:
        return product
    # (code - zero) * s = (code - 128) * s + (128 - zero) * s: the last is the same for all inputs
    sums = x.float().sum(dim=1, keepdim=True)
    return torch.addcmul(product.float(), sums, parts[2]).to(x.dtype)


KERNELS = (Kernel("torch int8pack", _refuses, _pack, _multiply),)
