"""A quantized weight: codes on a grid, and the parameters that dequantize them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from quantkit.core.scheme import Scheme


@dataclass(frozen=True)
class DoubleQuant:
    """Scales as 8-bit codes (bitsandbytes' nested absmax; QLoRA, arXiv 2305.14314, section 3).

    scales = book[codes] * absmax + offset, in fp32, with one absmax per 256 codes.

    codes: uint8 (blocks,). absmax: fp32 (ceil(blocks / 256),). offset: fp32, a scalar tensor.
    """

    codes: torch.Tensor
    absmax: torch.Tensor
    offset: torch.Tensor


@dataclass(frozen=True)
class QTensor:
    """Codes, scales and zeros of one linear; its grid says what they stand for.

    codes: uint8 (out_features, in_features), unsigned: 0 .. 2**bits - 1 for every grid.
    scales: (out_features, groups) in their storage dtype, or one a block of `scheme.rows` rows;
        NF4: fp32 (blocks,), the absmax of blocks of `group_size` values of the flattened weight.
    zeros: uint8 (out_features, groups) in 1 .. 2**bits - 1, or None where symmetric: 2**(bits-1).
    nested: the 8-bit form of NF4's scales if the scheme has `double_quant`, else None.
    global_scale: fp32 (1,), by which the scales are divided, or None.
    input_scale: fp32 (1,), that of inputs where kernels do not find it themselves, or None.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    scheme: Scheme
    nested: DoubleQuant | None = None
    global_scale: torch.Tensor | None = None
    input_scale: torch.Tensor | None = None

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A new weight (out_features, in_features): in fp32, rounded once to `dtype`."""
        weight: torch.Tensor = self.scheme.storage.dequantize(self)
        return weight.to(dtype)


PARTS = 8
"""Tensors that a QTensor has at most."""


def parts_of(qtensor: QTensor | None) -> list[torch.Tensor | None]:
    """Its tensors in an order of their own, PARTS of them; None for those that it has not."""
    if qtensor is None:
        return [None] * PARTS
    own = (qtensor.codes, qtensor.scales, qtensor.zeros, qtensor.global_scale, qtensor.input_scale)
    nested = qtensor.nested
    again = (nested.codes, nested.absmax, nested.offset) if nested else (None, None, None)
    return [*own, *again]


def of_parts(parts: Sequence[torch.Tensor | None], scheme: Scheme) -> QTensor | None:
    """What `parts_of` took apart."""
    codes, scales, zeros, global_scale, input_scale, *again = parts
    if codes is None or scales is None:
        return None
    there = [each for each in again if each is not None]
    nested = DoubleQuant(*there) if there else None
    return QTensor(codes, scales, zeros, scheme, nested, global_scale, input_scale)
