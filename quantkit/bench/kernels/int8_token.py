"""8-bit weights by 8-bit inputs: integer products, a scale for a token and one for an output."""

import torch
from torch.nn import functional

from quantkit.bench.kernel import Kernel, Parts, WeightFacts, device_is
from quantkit.grid.qtensor import QTensor

CUDA_ROWS = 17
"""torch's integer product on CUDA (cuBLASLt) wants more than 16 rows."""


def quantize_tokens(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 codes of `x` (rows, channels) and the fp32 scales (rows, 1): absmax / 127 of a row."""
    values = x.float()
    scales = values.abs().amax(-1, keepdim=True).clamp_min_(1e-10) / 127
    return values.div(scales).round_().to(torch.int8), scales


def _refuses(facts: WeightFacts) -> str | None:
    scheme = facts.scheme
    if scheme.grid != "int" or scheme.bits != 8 or scheme.activation != "int8-token":
        return "multiplies 8-bit integers by 8-bit inputs"
    if scheme.group_size is not None or not scheme.symmetric:
        return "has one symmetric scale for an output"
    if facts.device == "cuda" and (facts.in_features % 8 or facts.out_features % 8):
        return "needs multiples of 8 inputs and outputs"
    return None


def _pack(qtensor: QTensor, dtype: torch.dtype) -> Parts:
    del dtype  # the scales are applied to fp32 sums
    return (qtensor.codes ^ 128).view(torch.int8), qtensor.scales[:, 0].float()


def _multiply(x: torch.Tensor, parts: Parts) -> torch.Tensor:
    weight, scales = parts
    codes, token_scales = quantize_tokens(x)
    if x.is_cuda and len(x) < CUDA_ROWS:
        codes = functional.pad(codes, (0, 0, 0, CUDA_ROWS - len(x)))
    sums = torch._int_mm(codes, weight.T)[: len(x)]  # noqa: SLF001 - torch's name
    return sums.float().mul_(token_scales).mul_(scales).to(x.dtype)


def _refuses_onednn(facts: WeightFacts) -> str | None:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return "is not in this build of torch"
    if not torch.cpu._is_vnni_supported():  # noqa: SLF001 - torch's name
        return "needs AVX-512 VNNI: without it sums of two products saturate at 16 bits"
    return device_is(facts, "cpu") or _refuses(facts)


def _pack_onednn(qtensor: QTensor, dtype: torch.dtype) -> Parts:
    codes, scales = _pack(qtensor, dtype)
    packed = torch.ops.onednn.qlinear_prepack(codes, None)
    return packed, scales, torch.zeros(len(scales), dtype=torch.int32)


def _multiply_onednn(x: torch.Tensor, parts: Parts) -> torch.Tensor:
    weight, scales, zeros = parts
    codes, token_scales = quantize_tokens(x)
    # As unsigned codes around 128: for signed inputs oneDNN 3.12 has only its reference loop,
    # some thousand times slower.
    unsigned = codes.view(torch.uint8) ^ 128
    product: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        unsigned, 1.0, 128, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product.mul_(token_scales).to(x.dtype)


KERNELS = (
    Kernel("torch int_mm", _refuses, _pack, _multiply),
    Kernel("onednn int8 linear", _refuses_onednn, _pack_onednn, _multiply_onednn),
)
