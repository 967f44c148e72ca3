"""Search for the scales and zeros with the lowest weighted squared error."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantkit.grid.kernel import kernel_for
from quantkit.grid.rounding import Found, Rounding, steps_of
from quantkit.grid.tiles import tiles


@dataclass(frozen=True)
class Near:
    """`ldlq.Choose`: the best scales, or without `search` the spanning ones, times `factors`."""

    grid: Rounding
    search: bool
    factors: tuple[float, ...]

    def __call__(self, panel: torch.Tensor, importance: torch.Tensor) -> Found:
        """Scales and zeros, fp32 (factors, n) each, of a panel (group_size, n)."""
        scales, zeros = self.centre(panel, importance)
        around = torch.stack([self.grid.near(scales, factor) for factor in self.factors])
        return around, None if zeros is None else zeros.expand_as(around)

    def centre(self, panel: torch.Tensor, importance: torch.Tensor) -> Found:
        """Scales and zeros, fp32 (n,) each, before they are multiplied."""
        return search_scales(panel, importance, self.grid, search=self.search)


def search_scales(
    panel: torch.Tensor, importance: torch.Tensor, grid: Rounding, *, search: bool = True
) -> Found:
    """Scales and zeros, fp32 (n,) each, that minimize sum_j importance_j (w_j - w^_j)^2 per column.

    panel: fp32 (group_size, n); importance: fp32 (group_size,) >= 0, or (group_size, groups) where
    the columns are those of one group after the other; neither is modified. Zeros are None for a
    symmetric grid. Tries what the grid offers in place of the spanning scale. Then it alternates
    least-squares scales for fixed codes with new codes for fixed scales, and tries neighbouring
    zeros. The result is never worse than the spanning scale, and is that one if `search` is False.
    Kernels take experts as a leading dimension, too.
    """
    kernel = kernel_for(panel, panel.shape[-2], grid)
    if kernel:
        found: Found = kernel.best_scales(panel, importance, grid, search=search)
        return found
    if not search:
        return grid.span(panel)
    if importance.ndim > 1:
        return _ScaleSearch(panel, importance, grid).run()
    width = max(64, tiles(panel.device.type).search // panel.shape[0])
    parts = [_ScaleSearch(part, importance, grid).run() for part in torch.split(panel, width, 1)]
    scales = torch.cat([scales for scales, _ in parts])
    zeros = [zeros for _, zeros in parts if zeros is not None]
    return scales, torch.cat(zeros) if zeros else None


class _ScaleSearch:
    """The best scale and zero so far for each column of one panel (group_size, n)."""

    def __init__(self, panel: torch.Tensor, importance: torch.Tensor, grid: Rounding) -> None:
        # `scaled` and `steps` are buffers of all offers and hold no state between them.
        self.panel, self.importance, self.grid = panel, importance, grid
        self.scales, self.zeros = grid.span(panel)
        self.error = torch.full_like(self.scales, torch.inf)
        self.scaled, self.steps = torch.empty_like(panel), torch.empty_like(panel)

    def run(self) -> Found:
        """Scales and zeros, fp32 (n,) each, after all offers."""
        zeros = self.zeros
        for scales in self.grid.offers(self.scales):
            self.offer(scales, zeros)
        for _ in range(self.grid.refits):
            self.refit(self.zeros)
            if self.zeros is not None:
                top, centre = self.grid.top, self.zeros
                self.refit((centre - 1).clamp_(min=1))
                self.refit((centre + 1).clamp_(max=top))
        return self.scales, self.zeros

    def offer(self, scales: torch.Tensor, zeros: torch.Tensor | None) -> None:
        """Keeps storable `scales` and `zeros`, (n,) each, where they lower the error."""
        torch.mul(self.panel, 1 / scales, out=self.scaled)
        self.grid.snap(zeros)(self.scaled, self.steps)
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
        steps = steps_of(self.panel, self.scales, zeros, self.grid, out=self.steps)
        power = self.weighed(torch.mul(steps, steps, out=self.scaled))
        match = self.weighed(torch.mul(steps, self.panel, out=self.scaled))
        fitted = torch.where(power > 0, match / power, self.scales)
        self.offer(self.grid.storable(fitted), zeros)

    def weighed(self, values: torch.Tensor) -> torch.Tensor:
        """Sums of each column (n,), weighted by importance, of `values`, which may change."""
        if self.importance.ndim == 1:
            return self.importance @ values
        by_group = values.view(*self.importance.shape, -1)
        if self.grid.dtype.itemsize > 1:
            return torch.einsum("sg,sgn->gn", self.importance, by_group).flatten()
        return by_group.mul_(self.importance[..., None]).sum(0).flatten()  # of small groups
