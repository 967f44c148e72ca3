"""torch's matrix product with 4-bit weights, and with 8-bit weights as two 4-bit halves.

w = (code - 8) * scale + zero, one scale and zero for 32, 64, 128 or 256 inputs: the layout of
gpt-fast's tinygemm (CUDA) and of torch's AVX2 and AVX-512 code (CPU).
"""

import torch

from quantkit.bench.kernel import Kernel, Parts, WeightFacts, device_is
from quantkit.grid.qtensor import QTensor

GROUP_SIZES = (256, 128, 64, 32)
INNER_TILES = 8  # of 16 inputs each, as tinygemm lays them out on CUDA
OLDEST = (8, 0)
"""Compute capability of the oldest GPUs for which torch compiles tinygemm."""


def _group_size(group_size: int | None, in_features: int) -> int | None:
    """A group size that the kernel has and that divides the scheme's; None where none does."""
    whole = group_size or in_features
    return next((size for size in GROUP_SIZES if whole % size == 0), None)


def _refuses(facts: WeightFacts, bits: int, device: str) -> str | None:
    scheme = facts.scheme
    if reason := device_is(facts, device):
        return reason
    if scheme.grid != "int" or scheme.bits != bits or scheme.activation:
        return f"multiplies {bits}-bit integers by unquantized inputs"
    if bits == 8 and scheme.group_size is None:
        return "is for groups; 8-bit channels have a kernel of their own"
    return _refuses_shape(facts)


def _refuses_shape(facts: WeightFacts) -> str | None:
    if facts.capability is not None and facts.capability < OLDEST:
        return f"needs compute capability {OLDEST[0]}.{OLDEST[1]}"
    tile = 16 * INNER_TILES
    if facts.device == "cuda" and (facts.dtype != torch.bfloat16 or facts.in_features % tile):
        return f"needs bf16 inputs and a multiple of {tile} of them"
    if _group_size(facts.scheme.group_size, facts.in_features) is None:
        return "needs groups that are a multiple of 32 inputs"
    return "needs a multiple of 16 outputs" if facts.out_features % 16 else None


def _scales_zeros(
    scales: torch.Tensor, offsets: torch.Tensor, repeat: int, dtype: torch.dtype
) -> torch.Tensor:
    """(groups, outputs, 2): the scales, and what codes of 8 stand for, each `repeat` times."""
    both = torch.stack([scales, offsets], dim=-1).repeat_interleave(repeat, dim=1)
    return both.transpose(0, 1).to(dtype).contiguous()


def _numbers(qtensor: QTensor) -> tuple[torch.Tensor, torch.Tensor | float, int]:
    """fp32 scales, zero points, and how many of the kernel's groups are in one of the scheme's."""
    columns = qtensor.codes.shape[1]
    whole = columns // qtensor.scales.shape[1]
    size = _group_size(qtensor.scheme.group_size, columns)
    assert size is not None  # `refuses` has been asked
    middle = float(1 << (qtensor.scheme.bits - 1))
    zeros = middle if qtensor.zeros is None else qtensor.zeros.float()
    return qtensor.scales.float(), zeros, whole // size


def _pack_codes(codes: torch.Tensor) -> torch.Tensor:
    """4-bit codes (uint8, one a byte) in the kernel's tiles."""
    if codes.is_cuda:
        pairs = codes[:, ::2] << 4 | codes[:, 1::2]
        return torch._convert_weight_to_int4pack(pairs, INNER_TILES)  # noqa: SLF001 - torch's name
    return torch._convert_weight_to_int4pack_for_cpu(codes.int(), 1)  # noqa: SLF001


def _pack(qtensor: QTensor, dtype: torch.dtype) -> Parts:
    scales, zeros, repeat = _numbers(qtensor)
    return (
        _pack_codes(qtensor.codes),
        _scales_zeros(scales, (8 - zeros) * scales, repeat, dtype),
    )


def _pack_halves(qtensor: QTensor, dtype: torch.dtype) -> Parts:
    """(16 high + low - zero) * s = (high - 8) * 16 s + (low - 8) * s + (8 * 17 - zero) * s."""
    scales, zeros, repeat = _numbers(qtensor)
    nothing = torch.zeros_like(scales)
    return (
        _pack_codes(qtensor.codes >> 4),
        _scales_zeros(16 * scales, nothing, repeat, dtype),
        _pack_codes(qtensor.codes & 15),
        _scales_zeros(scales, (8 * 17 - zeros) * scales, repeat, dtype),
    )


def _multiply(x: torch.Tensor, parts: Parts) -> torch.Tensor:
    codes, scales_zeros = parts
    size = x.shape[1] // scales_zeros.shape[0]
    if x.is_cuda:
        return torch._weight_int4pack_mm(x, codes, size, scales_zeros)  # noqa: SLF001
    return torch._weight_int4pack_mm_for_cpu(x, codes, size, scales_zeros)  # noqa: SLF001


def _multiply_halves(x: torch.Tensor, parts: Parts) -> torch.Tensor:
    return _multiply(x, parts[:2]) + _multiply(x, parts[2:])


KERNELS = tuple(
    Kernel(
        name=f"torch int4pack{', two halves' if bits == 8 else ''} ({device})",
        refuses=lambda facts, bits=bits, device=device: _refuses(facts, bits, device),  # type: ignore[misc]  # bound now
        pack=_pack_halves if bits == 8 else _pack,
        multiply=_multiply_halves if bits == 8 else _multiply,
    )
    for device in ("cpu", "cuda")
    for bits in (4, 8)
)
