"""Search for the scales and zeros with the lowest weighted squared error."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantkit.grid.affine import AffineGrid, snap
from quantkit.grid.kernel import kernel_for
from quantkit.grid.tiles import tiles

# Lowest fraction of the min-max scale to try, by bits. The fewer the codes, the more clipping the
# largest weights pays for finer steps.
SMALLEST = {2: 0.3, 3: 0.45, 4: 0.5, 8: 0.85}
SHRINKS = 4  # fractions to try; a coarse grid does, as refits move the scale continuously
REFITS = 2

Found = tuple[torch.Tensor, torch.Tensor | None]
"""Scales and zeros, fp32 of one shape; zeros None where symmetric."""


@dataclass(frozen=True)
class Near:
    """`ldlq.Choose`: the best scales, or without `search` the spanning ones, times `factors`."""

    grid: AffineGrid
    search: bool
    factors: tuple[float, ...]

    def __call__(self, panel: torch.Tensor, importance: torch.Tensor) -> Found:
        """Scales and zeros, fp32 (factors, n) each, of a panel (group_size, n)."""
        scales, zeros = self.centre(panel, importance)
        around = torch.stack([self.grid.storable(scales * factor) for factor in self.factors])
        return around, None if zeros is None else zeros.expand_as(around)

    def centre(self, panel: torch.Tensor, importance: torch.Tensor) -> Found:
        """Scales and zeros, fp32 (n,) each, before they are multiplied."""
        return search_scales(panel, importance, self.grid, search=self.search)


def search_scales(
    panel: torch.Tensor, importance: torch.Tensor, grid: AffineGrid, *, search: bool = True
) -> Found:
    """Scales and zeros, fp32 (n,) each, that minimize sum_j importance_j (w_j - w^_j)^2 per column.

    panel: fp32 (group_size, n); importance: fp32 (group_size,) >= 0, or (group_size, groups) where
    the columns are those of one group after the other; neither is modified. Zeros are None for a
    symmetric grid. Tries fractions of the min-max scale, with both signs if the grid is
    signed. Then it alternates least-squares scales for fixed codes with new codes for fixed scales,
    and tries neighbouring zeros. The result is never worse than the min-max scale, and is that one
    if `search` is False. Kernels take experts as a leading dimension, too.
    """
    smallest = SMALLEST[grid.bits]
    shrinks, refits = (SHRINKS, REFITS) if search else (0, 0)
    fractions = tuple(1 - i * (1 - smallest) / (SHRINKS - 1) for i in range(shrinks))
    kernel = kernel_for(panel, panel.shape[-2])
    if kernel:
        found: Found = kernel.search(panel, importance, grid, fractions, refits)
        return found
    if importance.ndim > 1:
        return _ScaleSearch(panel, importance, grid).run(fractions, refits)
    width = max(64, tiles(panel.device.type).search // panel.shape[0])
    parts = [
        _ScaleSearch(part, importance, grid).run(fractions, refits)
        for part in torch.split(panel, width, 1)
    ]
    scales = torch.cat([scales for scales, _ in parts])
    zeros = [zeros for _, zeros in parts if zeros is not None]
    return scales, torch.cat(zeros) if zeros else None


class _ScaleSearch:
    """The best scale and zero so far for each column of one panel (group_size, n)."""

    def __init__(self, panel: torch.Tensor, importance: torch.Tensor, grid: AffineGrid) -> None:
        # `scaled` and `steps` are buffers of all offers and hold no state between them.
        self.panel, self.importance, self.grid = panel, importance, grid
        self.scales, self.zeros = grid.span(panel)
        self.error = torch.full_like(self.scales, torch.inf)
        self.scaled, self.steps = torch.empty_like(panel), torch.empty_like(panel)

    def run(self, fractions: tuple[float, ...], refits: int) -> Found:
        """Scales and zeros, fp32 (n,) each, after all offers."""
        span, zeros = self.scales, self.zeros
        for fraction in fractions:
            self.offer(span * fraction, zeros)
            if self.grid.symmetric and self.grid.signed:
                self.offer(span * -fraction, zeros)
        for _ in range(refits):
            self.refit(self.zeros)
            if self.zeros is not None:
                top = (1 << self.grid.bits) - 1
                centre = self.zeros
                self.refit((centre - 1).clamp_(min=1))
                self.refit((centre + 1).clamp_(max=top))
        return self.scales, self.zeros

    def offer(self, scales: torch.Tensor, zeros: torch.Tensor | None) -> None:
        """Keeps `scales` and `zeros`, (n,) each, for the columns where they lower the error."""
        scales = self.grid.storable(scales)
        torch.mul(self.panel, 1 / scales, out=self.scaled)
        torch.clamp(self.scaled, *self.grid.bounds(zeros), out=self.steps).round_()
        residual = self.scaled.sub_(self.steps).square_()
        error = self.weighed(residual).mul_(scales).mul_(scales)
        better = error < self.error
        self.error = torch.where(better, error, self.error)
        self.scales = torch.where(better, scales, self.scales)
        if zeros is not None and self.zeros is not None:
            self.zeros = torch.where(better, zeros, self.zeros)

    def refit(self, zeros: torch.Tensor | None) -> None:
        """Offers the least-squares scale for the codes that the best scale and `zeros` (n,) give.

        With steps k fixed, s = sum_j h_j k_j w_j / sum_j h_j k_j^2 minimizes the error; llama.cpp's
        `make_qx_quants` uses the same formula.
        """
        steps = snap(self.panel, self.scales, self.grid.bounds(zeros), out=self.steps)
        power = self.weighed(torch.mul(steps, steps, out=self.scaled))
        match = self.weighed(torch.mul(steps, self.panel, out=self.scaled))
        self.offer(torch.where(power > 0, match / power, self.scales), zeros)

    def weighed(self, values: torch.Tensor) -> torch.Tensor:
        """Sums of each column (n,), weighted by importance, of `values` (group_size, n)."""
        if self.importance.ndim == 1:
            return self.importance @ values
        by_group = values.view(*self.importance.shape, -1)
        return torch.einsum("sg,sgn->gn", self.importance, by_group).flatten()
