"""How scales of floats are stored: in 16 or 32 bits, as powers of two, or as floats of 8 bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

import torch

from quantkit.grid.minifloat import EIGHT

OCTAVE = 8
"""Scales that are tried between one and its double, where a float's rounding repeats."""
LEAST, MOST = -126, 127
"""Exponents of scales: 1 / scale is a normal fp32 number."""
BIAS = 127
"""The byte of the exponent 0 (OCP Microscaling Formats 1.0, 5.4.1)."""
BELOW, ABOVE = 2, 6
"""Codes of 8-bit scales below and above the spanning one that are tried: 0.85 to 1.7 times it."""


class ScaleStore(Protocol):
    """Which scales can be stored. All are positive, finite and not 0."""

    @property
    def dtype(self) -> torch.dtype:
        """As `Rounding`'s."""

    @property
    def refits(self) -> int:
        """As `Rounding`'s."""

    @property
    def global_scale(self) -> torch.Tensor | None:
        """As `Rounding`'s."""

    def spanning(self, largest: torch.Tensor, most: float) -> torch.Tensor:
        """Storable scales fp32 (n,) for groups with these `largest` magnitudes, fp32 (n,).

        `most` is the largest number of the grid.
        """

    def around(self, scales: torch.Tensor) -> Iterator[torch.Tensor]:
        """Storable scales, fp32 as `scales`, that a search tries; first these themselves."""

    def near(self, scales: torch.Tensor, factor: float) -> torch.Tensor:
        """As `Rounding`'s."""

    def storable(self, scales: torch.Tensor) -> torch.Tensor:
        """As `Rounding`'s."""

    def stored(self, scales: torch.Tensor) -> torch.Tensor:
        """As `Rounding`'s."""

    def provisional(self, weights: Sequence[torch.Tensor]) -> Self:
        """As `Rounding`'s."""


@dataclass(frozen=True)
class PlainScales:
    """Floats of 16 or 32 bits.

    `factors`: by what a search multiplies the spanning scale. Those of floats are within an octave
    above it, and a fit by least squares after the search would take a fifth of its time for 1 % of
    the error; numbers that are few want smaller scales, and `refits`.
    """

    dtype: torch.dtype
    refits: int = 0
    factors: tuple[float, ...] = tuple(2 ** (step / OCTAVE) for step in range(OCTAVE))
    global_scale = None

    def spanning(self, largest: torch.Tensor, most: float) -> torch.Tensor:
        """As `ScaleStore`."""
        return self.storable(largest / most)

    def around(self, scales: torch.Tensor) -> Iterator[torch.Tensor]:
        """As `ScaleStore`."""
        yield from (self.storable(scales * factor) for factor in self.factors)

    def near(self, scales: torch.Tensor, factor: float) -> torch.Tensor:
        """As `ScaleStore`."""
        return self.storable(scales * factor)

    def storable(self, scales: torch.Tensor) -> torch.Tensor:
        """As `ScaleStore`."""
        info = torch.finfo(self.dtype)
        least = max(info.smallest_normal * info.eps, 2.0**LEAST)
        stored = scales.clamp(least, info.max).to(self.dtype).float()
        return torch.where(scales == 0, 1.0, stored)

    def stored(self, scales: torch.Tensor) -> torch.Tensor:
        """As `ScaleStore`."""
        return scales.to(self.dtype)

    def provisional(self, _: Sequence[torch.Tensor]) -> Self:
        """As `ScaleStore`."""
        return replace(self, dtype=torch.float32)


@dataclass(frozen=True)
class TensorScale(PlainScales):
    """One scale for a whole weight, and for all that engines fuse with it: `scale`, fp32 (1,)."""

    scale: torch.Tensor = field(default_factory=lambda: torch.ones(1))
    most: float = EIGHT.largest

    @classmethod
    def of(cls, weights: Sequence[torch.Tensor], most: float, dtype: torch.dtype) -> Self:
        """That spans `weights`, fp32: e4m3's spacing is relative, so a search finds none better."""
        largest = torch.stack([weight.abs().amax() for weight in weights]).amax()
        scale = PlainScales(dtype).spanning(largest.reshape(1), most)
        return cls(dtype, scale=scale, most=most)

    def spanning(self, largest: torch.Tensor, _: float) -> torch.Tensor:
        """As `ScaleStore`."""
        return self.scale.expand_as(largest)

    def around(self, scales: torch.Tensor) -> Iterator[torch.Tensor]:
        """As `ScaleStore`."""
        yield scales

    def near(self, scales: torch.Tensor, _: float) -> torch.Tensor:
        """As `ScaleStore`."""
        return scales

    def provisional(self, weights: Sequence[torch.Tensor]) -> Self:
        """As `ScaleStore`."""
        return type(self).of(weights, self.most, torch.float32)


@dataclass(frozen=True)
class PowerScales:
    """Powers of two, a byte each (e8m0; OCP Microscaling Formats 1.0, 5.4.1).

    `trials`: whether a solve tries neighbours, too. Numbers with many exponents round alike under
    them, and what breaks the tie would be how sums were rounded.
    """

    trials: bool = True
    dtype = torch.uint8
    refits = 0
    global_scale = None

    def spanning(self, largest: torch.Tensor, most: float) -> torch.Tensor:
        """As `ScaleStore`: the largest magnitude gets the largest exponent (the same, 6.3)."""
        exponents = torch.frexp(largest).exponent - 1 - _exponent(most)
        return self.power(torch.where(largest > 0, exponents, 0))

    def around(self, scales: torch.Tensor) -> Iterator[torch.Tensor]:
        """As `ScaleStore`."""
        yield from (self.storable(scales * factor) for factor in (1.0, 2.0, 0.5))

    def near(self, scales: torch.Tensor, factor: float) -> torch.Tensor:
        """As `ScaleStore`."""
        if factor == 1 or not self.trials:
            return scales
        return self.storable(scales * (2 if factor > 1 else 0.5))

    def storable(self, scales: torch.Tensor) -> torch.Tensor:
        """As `ScaleStore`."""
        return self.power(torch.where(scales > 0, scales, 1.0).log2().round().int())

    def stored(self, scales: torch.Tensor) -> torch.Tensor:
        """As `ScaleStore`."""
        return (torch.frexp(scales).exponent + (BIAS - 1)).to(torch.uint8)

    def provisional(self, _: Sequence[torch.Tensor]) -> Self:
        """As `ScaleStore`."""
        return self

    @staticmethod
    def power(exponents: torch.Tensor) -> torch.Tensor:
        """fp32 powers of two of integers (any shape), within what can be stored."""
        return ((exponents.int().clamp(LEAST, MOST) + BIAS) << 23).view(torch.float32)


@dataclass(frozen=True)
class NestedScales:
    """e4m3 floats, all divided by one fp32 scale of the whole tensor, `global_scale` (1,).

    NVFP4 (NVIDIA, "Pretraining Large Language Models with NVFP4", arXiv 2509.25149, section 2).
    Here it is a power of two, which others' largest / (448 x 6) is not: a factor, its reciprocal
    and any product with it are exact then, so that all layouts and kernels hold the same weight.
    """

    global_scale: torch.Tensor
    most: float
    dtype = torch.float8_e4m3fn
    refits = 0

    @classmethod
    def of(cls, weights: Sequence[torch.Tensor], most: float) -> Self:
        """For `weights`, fp32, and a grid whose largest number is `most`.

        The largest magnitude of all has a scale between the largest one and half of it, so that a
        search may raise most scales.
        """
        largest = torch.stack([weight.abs().amax() for weight in weights]).amax()
        exponents = torch.frexp(EIGHT.largest * most / largest).exponent - 1
        found = PowerScales.power(exponents)
        return cls(torch.where(largest > 0, found, 1.0).reshape(1), most)

    def spanning(self, largest: torch.Tensor, most: float) -> torch.Tensor:
        """As `ScaleStore`."""
        return self.storable(largest / most)

    def around(self, scales: torch.Tensor) -> Iterator[torch.Tensor]:
        """As `ScaleStore`."""
        codes = self._codes(scales)
        yield scales
        yield from (self._of(codes + step) for step in range(-BELOW, ABOVE + 1) if step)

    def near(self, scales: torch.Tensor, factor: float) -> torch.Tensor:
        """As `ScaleStore`."""
        return self._of(self._codes(scales) + (0 if factor == 1 else 1 if factor > 1 else -1))

    def storable(self, scales: torch.Tensor) -> torch.Tensor:
        """As `ScaleStore`."""
        return self._of(self._codes(scales))

    def stored(self, scales: torch.Tensor) -> torch.Tensor:
        """As `ScaleStore`."""
        return self._codes(scales).to(torch.uint8).view(self.dtype)

    def provisional(self, weights: Sequence[torch.Tensor]) -> Self:
        """As `ScaleStore`."""
        return type(self).of(weights, self.most)

    def _codes(self, scales: torch.Tensor) -> torch.Tensor:
        """int16 codes of the nearest scales; 1 and more, as 0 would be no scale."""
        scaled = scales * self.global_scale
        return EIGHT.codes(EIGHT.round(scaled, scaled)).to(torch.int16).clamp_(1)

    def _of(self, codes: torch.Tensor) -> torch.Tensor:
        """fp32 scales of int16 codes; 126 is the largest number."""
        return codes.clamp(1, 126).to(torch.uint8).view(self.dtype).float() / self.global_scale


def _exponent(number: float) -> int:
    """That of a number in fp32: 8 for 448."""
    return int(torch.frexp(torch.tensor(number)).exponent) - 1
