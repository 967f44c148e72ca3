"""Integer grids: w = scale * (code - zero), with scales that are exact in their storage dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from quantkit.grid.rounding import Found, Snap

Bounds = tuple[torch.Tensor, torch.Tensor] | tuple[int, int]
"""Lowest and highest step of a grid; step = code - zero. fp32 (n,) each, or two ints."""
# Lowest fraction of the min-max scale to try, by bits. The fewer the codes, the more clipping the
# largest weights pays for finer steps.
SMALLEST = {2: 0.3, 3: 0.45, 4: 0.5, 5: 0.6, 6: 0.7, 7: 0.8, 8: 0.85}
SHRINKS = 4  # fractions to try; a coarse grid does, as refits move the scale continuously


@dataclass(frozen=True)
class AffineGrid:
    """A `Rounding`: the integer grid of one scheme, and the dtype in which its scales are stored.

    `signed` allows negative symmetric scales. The element of largest magnitude then lies on the
    lowest code, -2**(bits-1), which has no positive counterpart: the scale is amax / 8 at 4 bits
    instead of GPTQ's amax / 7.5. llama.cpp's Q4_0 uses the same rule. On SmolLM2-135M (4 bits,
    groups of 64) it lowers the squared error of the weights by 16 % at no cost at run time.
    """

    bits: int
    symmetric: bool
    dtype: torch.dtype
    signed: bool = True
    refits = 2
    global_scale = None

    @property
    def fractions(self) -> tuple[float, ...]:
        """Of the min-max scale, what a search tries."""
        smallest = SMALLEST[self.bits]
        return tuple(1 - i * (1 - smallest) / (SHRINKS - 1) for i in range(SHRINKS))

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def offers(self, scales: torch.Tensor) -> Iterator[torch.Tensor]:
        """As `Rounding`: fractions, with both signs if the grid is signed."""
        for fraction in self.fractions:
            yield self.storable(scales * fraction)
            if self.symmetric and self.signed:
                yield self.storable(scales * -fraction)

    def near(self, scales: torch.Tensor, factor: float) -> torch.Tensor:
        """As `Rounding`."""
        return self.storable(scales * factor)

    def stored(self, scales: torch.Tensor) -> torch.Tensor:
        """As `Rounding`."""
        return scales.to(self.dtype)

    def snap(self, zeros: torch.Tensor | None) -> Snap:
        """As `Rounding`: integers within the bounds, as floats."""
        bounds = self.bounds(zeros)
        # Bounds are integers: clamping before rounding gives the same steps as after it.
        return lambda values, out: torch.clamp(values, *bounds, out=out).round_()

    def codes(self, steps: torch.Tensor, zeros: torch.Tensor | None) -> torch.Tensor:
        """As `Rounding`."""
        return steps.sub_(self.bounds(zeros)[0]).to(torch.uint8)

    def signs(self, *, signed: bool) -> Self:
        """As `Rounding`."""
        return replace(self, signed=signed)

    def provisional(self, _: Sequence[torch.Tensor]) -> Self:
        """As `Rounding`: scales stay in fp32."""
        return replace(self, dtype=torch.float32)

    def bounds(self, zeros: torch.Tensor | None) -> Bounds:
        """Lowest and highest step: int for symmetric grids, tensors shaped like `zeros` otherwise.

        zeros: fp32 (n,), or None for a symmetric grid.
        """
        if zeros is None:
            half = 1 << (self.bits - 1)
            return -half, half - 1
        return -zeros, (1 << self.bits) - 1 - zeros

    def span(self, panel: torch.Tensor) -> Found:
        """As `Rounding`: min-max scales and zeros.

        Zeros are None for a symmetric grid, else integers in 1 .. 2**bits - 1: version 1 of the
        GPTQ layout stores zero - 1, so 0 would wrap. This costs one code where no value is
        negative.
        """
        low, high = panel.amin(0), panel.amax(0)
        half, top = 1 << (self.bits - 1), (1 << self.bits) - 1
        if self.symmetric and self.signed:
            extreme = torch.where(high > -low, high, low)
            return self.storable(extreme / -half), None
        if self.symmetric:
            return self.storable(torch.maximum(high, -low) / (half - 0.5)), None
        # The range must include 0: otherwise the zero point lies outside the codes.
        low, high = low.clamp(max=0), high.clamp(min=0)
        scales = (high - low) / top
        zeros = (-low / scales).nan_to_num_(half).round_()  # 0 / 0 in a group of zeros
        scales = self.storable(torch.where(zeros < 1, high / (top - 1), scales))
        return scales, zeros.clamp_(1, top)

    def storable(self, scales: torch.Tensor) -> torch.Tensor:
        """`scales` (any shape) rounded to the storage dtype, as a new fp32 tensor.

        Results are finite and never 0; a scale of 0 becomes 1. Codes must be computed with these
        scales: rounding the scales after the codes would change the dequantized weights.
        """
        stored = scales.abs().clamp(*self.limits).to(self.dtype).float().copysign(scales)
        return torch.where(scales == 0, 1.0, stored)

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the largest magnitude of a stored scale."""
        info = torch.finfo(self.dtype)
        return max(info.smallest_normal * info.eps, 2.0**-126), info.max  # 1 / scale fits in fp32
