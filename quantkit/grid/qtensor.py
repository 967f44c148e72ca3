"""A quantized weight: codes on a grid, and what turns them back into numbers."""

from dataclasses import dataclass

import torch

from quantkit.core.scheme import Scheme
from quantkit.grid.normal4 import NF4


@dataclass(frozen=True)
class DoubleQuant:
    """Scales that are themselves 8-bit codes (bitsandbytes' nested absmax).

    scales = book[codes] * absmax (one per 256 codes) + offset, all fp32.
    """

    codes: torch.Tensor
    absmax: torch.Tensor
    offset: torch.Tensor


@dataclass(frozen=True)
class QTensor:
    """Codes, scales and zeros of one linear.

    codes: uint8 (out_features, in_features), unsigned: 0 .. 2**bits - 1 for every grid.
    scales: (out_features, groups) in their storage dtype; NF4: fp32 (blocks,), the absmax of blocks
        of `group_size` values of the row-major flattened weight.
    zeros: uint8 (out_features, groups) in 1 .. 2**bits - 1, or None where symmetric (2**(bits-1)).
    nested: the 8-bit form of NF4's scales where the scheme says double_quant.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    scheme: Scheme
    nested: DoubleQuant | None = None

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weight (out_features, in_features): the fp32 product, rounded once to `dtype`."""
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
