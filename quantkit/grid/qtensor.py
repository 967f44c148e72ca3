"""A quantized weight: codes on a grid, and the parameters that dequantize them."""

from dataclasses import dataclass

import torch

from quantkit.core.scheme import Scheme
from quantkit.grid.normal4 import NF4


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
    """Codes, scales and zeros of one linear: w = scale * (code - zero), or scale * NF4[code].

    codes: uint8 (out_features, in_features), unsigned: 0 .. 2**bits - 1 for every grid.
    scales: (out_features, groups) in their storage dtype; NF4: fp32 (blocks,), the absmax of blocks
        of `group_size` values of the row-major flattened weight.
    zeros: uint8 (out_features, groups) in 1 .. 2**bits - 1, or None where symmetric: 2**(bits-1).
    nested: the 8-bit form of NF4's scales if the scheme has `double_quant`, else None.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    scheme: Scheme
    nested: DoubleQuant | None = None

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A new weight (out_features, in_features): in fp32, rounded once to `dtype`."""
        out_features, in_features = self.codes.shape
        if self.scheme.grid == "nf4":
            size = self.scheme.group_size or self.codes.numel()
            values = NF4.to(self.codes.device)[self.codes.int()].flatten()
            blocks = torch.nn.functional.pad(values, (0, -values.numel() % size)).view(-1, size)
            flat = blocks.mul_(self.scales[:, None]).flatten()[: values.numel()]
            return flat.view(out_features, in_features).to(dtype)
        zeros = float(1 << (self.scheme.bits - 1)) if self.zeros is None else self.zeros[..., None]
        grouped = self.codes.view(out_features, self.scales.shape[1], -1).float()
        weight = grouped.sub_(zeros).mul_(self.scales.float()[..., None])
        return weight.view(out_features, in_features).to(dtype)
