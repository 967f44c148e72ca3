"""What methods round weights with: a grid for certain weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, Self

import torch

Found = tuple[torch.Tensor, torch.Tensor | None]
"""Scales and zeros, fp32 of one shape; zeros None where the grid has none."""
Snap = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Writes the nearest steps of the first, fp32 of any shape, into the second; returns it."""


class Rounding(Protocol):
    """A grid, and how scales are stored.

    A panel is a part of a weight, fp32 (group_size, n), with one column per scale. It is the
    transpose of the weight's layout, so that the values of one input channel are contiguous. A step
    is a value in units of its scale: w = scale * step.
    """

    @property
    def dtype(self) -> torch.dtype:
        """That of stored scales."""

    @property
    def symmetric(self) -> bool:
        """Whether there are no zero points."""

    @property
    def refits(self) -> int:
        """How often a search fits scales by least squares; 0 where few can be stored."""

    @property
    def global_scale(self) -> torch.Tensor | None:
        """fp32 (1,), by which stored scales are divided; None where they are whole."""

    @property
    def top(self) -> int:
        """The largest code, and zero point."""

    def span(self, panel: torch.Tensor) -> Found:
        """Scales and zeros, fp32 (n,) each, that span a panel (group_size, n); no search."""

    def offers(self, scales: torch.Tensor) -> Iterator[torch.Tensor]:
        """Storable scales that a search tries in place of spanning ones, fp32 (n,) each."""

    def near(self, scales: torch.Tensor, factor: float) -> torch.Tensor:
        """Storable scales near `scales` * `factor`, and other ones unless the factor is 1."""

    def storable(self, scales: torch.Tensor) -> torch.Tensor:
        """`scales` (any shape) as they would be read again, a new fp32 tensor; finite, never 0."""

    def stored(self, scales: torch.Tensor) -> torch.Tensor:
        """Storable fp32 `scales` (any shape) in their own dtype."""

    def snap(self, zeros: torch.Tensor | None) -> Snap:
        """Rounds to the nearest step; `zeros` broadcast to the values, or are None."""

    def codes(self, steps: torch.Tensor, zeros: torch.Tensor | None) -> torch.Tensor:
        """uint8 codes of steps, fp32 (.., n), which are overwritten; `zeros` broadcast to them."""

    def signs(self, *, signed: bool) -> Self:
        """The grid with scales of both signs, if it knows these, or with positive ones alone."""

    def provisional(self, weights: Sequence[torch.Tensor]) -> Self:
        """The grid for weights that are only tried: what rounding their scales adds is left out."""


def steps_of(
    values: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    grid: Rounding,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The nearest steps, fp32 as `values` (group_size, n), under scales and zeros, fp32 (n,).

    Writes into `out` if given, and returns it.
    """
    steps = torch.mul(values, 1 / scales, out=out)
    return grid.snap(zeros)(steps, steps)
