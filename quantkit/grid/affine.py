"""Integer grids: w = scale * (code - zero), with scales that storage holds exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Bounds = tuple[torch.Tensor, torch.Tensor] | tuple[int, int]
"""Lowest and highest step of a grid, a step being code - zero."""


@dataclass(frozen=True)
class AffineGrid:
    """The integer grid of one scheme, and the dtype in which its scales are stored.

    Panels are (group_size, n): one column per scale, so that an input channel is contiguous.
    `signed` lets symmetric scales be negative: the element of largest magnitude then lies on the
    one code that has no opposite, and the grid is finer by 1/16 at 4 bits than amax / 7.5 is.
    """

    bits: int
    symmetric: bool
    dtype: torch.dtype
    signed: bool = True

    def bounds(self, zeros: torch.Tensor | None) -> Bounds:
        """Lowest and highest step for the given zeros."""
        if zeros is None:
            half = 1 << (self.bits - 1)
            return -half, half - 1
        return -zeros, (1 << self.bits) - 1 - zeros

    def span(self, panel: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scales and zeros (n,) that span each column: the rule without any search.

        Zeros lie in 1 .. 2**bits - 1, as GPTQ's first layout stores zero - 1; where every value is
        positive this costs one code.
        """
        low, high = panel.amin(0), panel.amax(0)
        half, top = 1 << (self.bits - 1), (1 << self.bits) - 1
        if self.symmetric and self.signed:
            extreme = torch.where(high > -low, high, low)
            return self.storable(extreme / -half), None
        if self.symmetric:
            return self.storable(torch.maximum(high, -low) / (half - 0.5)), None
        low, high = low.clamp(max=0), high.clamp(min=0)
        scales = (high - low) / top
        zeros = (-low / scales).nan_to_num_(half).round_()
        scales = self.storable(torch.where(zeros < 1, high / (top - 1), scales))
        return scales, zeros.clamp_(1, top)

    def storable(self, scales: torch.Tensor) -> torch.Tensor:
        """`scales` as fp32 numbers that the storage dtype holds: finite, never 0; 0 becomes 1."""
        info = torch.finfo(self.dtype)
        least = max(info.smallest_normal * info.eps, 2.0**-126)  # 1 / scale must be finite in fp32
        stored = scales.abs().clamp(least, info.max).to(self.dtype).float().copysign(scales)
        return torch.where(scales == 0, 1.0, stored)


def snap(
    values: torch.Tensor, scales: torch.Tensor, bounds: Bounds, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The nearest steps of the grid, as floats in `bounds`."""
    steps = torch.mul(values, 1 / scales, out=out)
    return torch.clamp_(steps, *bounds).round_()
