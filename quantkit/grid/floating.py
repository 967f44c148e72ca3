"""Grids without zero points: w = scale * number, one of those that codes stand for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch

from quantkit.grid.rounding import Found, Snap
from quantkit.grid.scale_stores import ScaleStore


class Numbers(Protocol):
    """The numbers that codes stand for; 0 is one of them."""

    @property
    def largest(self) -> float:
        """The largest magnitude."""

    def round(self, values: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """The nearest numbers to fp32 `values` (any shape) in `out`, which may be the values."""

    def codes(self, numbers: torch.Tensor) -> torch.Tensor:
        """uint8 codes of numbers, fp32 of any shape."""


@dataclass(frozen=True)
class FloatGrid:
    """A `Rounding`: the numbers, and which scales can be stored."""

    numbers: Numbers
    store: ScaleStore
    symmetric = True
    top = 255

    @property
    def dtype(self) -> torch.dtype:
        """As `Rounding`."""
        return self.store.dtype

    @property
    def refits(self) -> int:
        """As `Rounding`."""
        return self.store.refits

    @property
    def global_scale(self) -> torch.Tensor | None:
        """As `Rounding`."""
        return self.store.global_scale

    def span(self, panel: torch.Tensor) -> Found:
        """As `Rounding`."""
        return self.store.spanning(panel.abs().amax(0), self.numbers.largest), None

    def offers(self, scales: torch.Tensor) -> Iterator[torch.Tensor]:
        """As `Rounding`."""
        return self.store.around(scales)

    def near(self, scales: torch.Tensor, factor: float) -> torch.Tensor:
        """As `Rounding`."""
        return self.store.near(scales, factor)

    def storable(self, scales: torch.Tensor) -> torch.Tensor:
        """As `Rounding`; codes have signs, so scales need none."""
        return self.store.storable(scales.abs())

    def stored(self, scales: torch.Tensor) -> torch.Tensor:
        """As `Rounding`."""
        return self.store.stored(scales)

    def snap(self, _: torch.Tensor | None) -> Snap:
        """As `Rounding`."""
        return self.numbers.round

    def codes(self, steps: torch.Tensor, _: torch.Tensor | None) -> torch.Tensor:
        """As `Rounding`."""
        return self.numbers.codes(steps)

    def signs(self, *, signed: bool) -> Self:  # noqa: ARG002 - the numbers have both already
        """As `Rounding`."""
        return self

    def provisional(self, weights: Sequence[torch.Tensor]) -> Self:
        """As `Rounding`."""
        return replace(self, store=self.store.provisional(weights))
