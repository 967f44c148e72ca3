"""bitsandbytes' products with NF4 weights, where that library is installed.

It has two: a fused one, on CPUs with AVX-512 BF16 and on GPUs, and one that dequantizes the weight
into a buffer at each call and multiplies by that. Which of them runs is in the kernel's name.
"""

from importlib.util import find_spec

import torch

from quantkit.bench.kernel import Kernel, Parts, WeightFacts, device_is
from quantkit.grid.packing import pack_nibbles
from quantkit.grid.qtensor import QTensor

PACKED_OUTPUTS = 32  # rows of the weight that the fused CPU kernel reads side by side


def _refuses(facts: WeightFacts) -> str | None:
    if facts.scheme.grid != "nf4":
        return "multiplies NF4 weights"
    if find_spec("bitsandbytes") is None:
        return "bitsandbytes is not installed"
    if facts.scheme.group_size is None or facts.in_features % facts.scheme.group_size:
        return "needs rows that are whole groups"
    return None


def _pack(qtensor: QTensor, dtype: torch.dtype) -> Parts:
    del dtype  # its scales are fp32
    packed = pack_nibbles(qtensor.codes, high_first=True)
    return packed.view(len(qtensor.codes), -1), qtensor.scales.float()


def _multiply(x: torch.Tensor, parts: Parts) -> torch.Tensor:
    import bitsandbytes  # noqa: F401 - registers its operators

    codes, absmax = parts
    shape = (len(codes), 2 * codes.shape[1])
    size = shape[0] * shape[1] // len(absmax)
    product: torch.Tensor = torch.ops.bitsandbytes.gemm_4bit(
        x, codes.view(-1, 1), shape, absmax, size, "nf4"
    )
    return product


def _refuses_fused(facts: WeightFacts) -> str | None:
    if reason := device_is(facts, "cpu") or _refuses(facts):
        return reason
    if facts.dtype != torch.bfloat16:
        return "computes in bf16 alone"
    if facts.out_features % PACKED_OUTPUTS:
        return f"needs a multiple of {PACKED_OUTPUTS} outputs"
    from bitsandbytes.functional import has_avx512bf16

    return None if has_avx512bf16() else "needs AVX-512 BF16"


def _pack_fused(qtensor: QTensor, dtype: torch.dtype) -> Parts:
    from bitsandbytes import functional

    codes, absmax = _pack(qtensor, dtype)
    state = functional.QuantState(
        absmax=absmax,
        shape=torch.Size(qtensor.codes.shape),
        blocksize=qtensor.scheme.group_size,
        quant_type="nf4",
        dtype=dtype,
    )
    packed, state = functional._convert_weight_packed_for_cpu(codes, state)  # noqa: SLF001 - no public way
    return packed, state.absmax, functional.get_4bit_type("nf4", device="cpu")


def _multiply_fused(x: torch.Tensor, parts: Parts) -> torch.Tensor:
    codes, absmax, table = parts
    shape = (len(codes), 2 * codes.shape[1])
    size = shape[1] // len(absmax)
    product: torch.Tensor = torch.ops.bitsandbytes.gemv_4bit(x, codes, shape, absmax, table, size)
    return product


KERNELS = (
    Kernel("bitsandbytes gemv_4bit", _refuses_fused, _pack_fused, _multiply_fused),
    Kernel("bitsandbytes gemm_4bit", _refuses, _pack, _multiply),
)
