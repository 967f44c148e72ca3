"""Floats of 8 and 4 bits: rounding to them, and their codes.

e4m3 (OCP 8-bit Floating Point 1.0; the variant without infinities that torch calls `e4m3fn`) and
e2m1 (OCP Microscaling Formats 1.0, 5.3.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

EXPONENT, HALF = 0x7F800000, 0x400000
"""The bits of an fp32 number's exponent, and the first of its mantissa."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of the codes 0 to 7; 8 to 15 are the same, negative."""


@dataclass(frozen=True)
class MiniFloat:
    """A float of `bits`, of which `mantissa` ones, its `least` normal number, its `largest` one."""

    bits: int
    mantissa: int
    least: float
    largest: float

    def round(self, values: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """The nearest numbers to fp32 `values` (any shape) in `out`, ties to the even code.

        Beyond the largest number they are that. `out` may be the values themselves.
        """
        torch.clamp(values, -self.largest, self.largest, out=out)
        # fp32 rounds to the spacing of numbers once so large a number was added that its own
        # spacing is the same; below the least normal number the spacing stays as it is there.
        bits = out.view(torch.int32).bitwise_and(EXPONENT).clamp_(min=_bits(self.least))
        large = bits.add_(((23 - self.mantissa) << 23) | HALF).view(torch.float32)
        return out.add_(large).sub_(large)

    def codes(self, numbers: torch.Tensor) -> torch.Tensor:
        """uint8 codes of numbers, fp32 of any shape; those of 4 bits are 0 .. 15."""
        if self.bits == 8:
            return numbers.to(torch.float8_e4m3fn).view(torch.uint8)
        # Numbers are 0.5 apart up to 2, then 1 up to 4, then 2: steps in each of these parts.
        size = numbers.abs()
        steps = size.clamp(max=2).mul_(2).add_(size.clamp(2, 4)).add_(size.clamp_(min=4), alpha=0.5)
        return steps.sub_(4).to(torch.uint8).add_((numbers < 0).to(torch.uint8), alpha=8)

    def values(self, codes: torch.Tensor) -> torch.Tensor:
        """fp32 numbers of uint8 codes (any shape); 127 and 255 of 8 bits are NaN."""
        if self.bits == 8:
            return codes.view(torch.float8_e4m3fn).float()
        return torch.tensor([*E2M1, *(-v for v in E2M1)], device=codes.device)[codes.int()]


def _bits(number: float) -> int:
    """Those of an fp32 number."""
    return int(torch.tensor(number).view(torch.int32))


FOUR = MiniFloat(bits=4, mantissa=1, least=1.0, largest=6.0)
EIGHT = MiniFloat(bits=8, mantissa=3, least=2.0**-6, largest=448.0)
