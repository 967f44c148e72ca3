"""The Triton programs of a group of columns as functions of tensors.

A group of 128 takes 8 launches with them, and 845 of torch's operators. Tensors may have a leading
dimension of experts: problems of equal shape that have nothing in common.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import triton

from quantkit.grid import group_program
from quantkit.grid.affine import AffineGrid

ROWS = 8
"""Rows of a program, and one warp for them. A tile of 128 columns then is 32 registers a thread;
`trials` takes 220 of 255 and spills none, with 16 rows it does. So 9 programs fit on a
multiprocessor of an H100, 2 for each scheduler; 4096 rows are one for each of all schedulers."""
WARPS = 1
STORED = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Near(Protocol):
    """`search.Near`: multiples, by `factors`, of the scales that `centre` finds."""

    @property
    def factors(self) -> tuple[float, ...]:
        """What is tried, in units of the centre."""

    def centre(
        self, panel: torch.Tensor, importance: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scales and zeros, fp32 (.., n) each, of a panel (.., group_size, n)."""


def best_scales(
    panel: torch.Tensor,
    importance: torch.Tensor,
    grid: AffineGrid,
    *,
    search: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scales and zeros, fp32 (.., n) each, of a panel fp32 (.., group_size, n), as `search_scales`.

    importance: fp32 (.., group_size), or (group_size, groups) for a panel of two dimensions.
    """
    if importance.ndim == panel.ndim:
        panel = panel.reshape(len(panel), importance.shape[1], -1).transpose(0, 1)
        scales, zeros = best_scales(panel, importance.T, grid, search=search)
        return scales.flatten(), None if zeros is None else zeros.flatten()
    size, n = panel.shape[-2:]
    panel, importance = panel.contiguous(), importance.contiguous()
    scales = panel.new_empty(*panel.shape[:-2], n)
    zeros = None if grid.symmetric else torch.empty_like(scales)
    with torch.cuda.device_of(panel):  # type: ignore[no-untyped-call]
        group_program.search[_programs(panel)](
            panel,
            importance,
            scales,
            scales if zeros is None else zeros,
            n,
            SIZE=size,
            FRACTIONS=grid.fractions if search else (),
            REFITS=grid.refits if search else 0,
            **_options(grid),
        )
    return scales, zeros


class GroupRows:
    """State of a chunk of rows while its groups are rounded: `ldlq`'s, for kernels.

    weights: fp32 (.., d, rows); couplings: (.., d, d); pivots: (.., d), as of `ldlq.Feedback`.
    `codes` is uint8 (.., d, rows), `scales` and `zeros` are fp32 (.., groups, rows). A group's
    `targets` are replaced by its errors, as in `ldlq`.
    """

    def __init__(
        self,
        weights: torch.Tensor,
        couplings: torch.Tensor,
        pivots: torch.Tensor,
        grid: AffineGrid,
        group_size: int,
        near: Near,
    ) -> None:
        self.couplings, self.pivots = couplings.contiguous(), pivots.contiguous()
        self.grid, self.size, self.near = grid, group_size, near
        self.weights = weights if weights.stride(-1) == 1 else weights.contiguous()
        self.targets = weights.clone(memory_format=torch.contiguous_format)
        self.codes = torch.empty_like(self.targets, dtype=torch.uint8)
        groups = weights.shape[-2] // group_size
        self.scales = self.targets.new_empty(*weights.shape[:-2], groups, weights.shape[-1])
        self.zeros = None if grid.symmetric else torch.empty_like(self.scales)
        self.followed = _followed(couplings, group_size)

    def round_group(self, start: int, stop: int) -> None:
        """Rounds the group at positions start .. stop: its targets become its errors."""
        here, group = slice(start, stop), start // self.size
        weights, targets = self.weights[..., here, :], self.targets[..., here, :]
        pivots = self.pivots[..., here]
        running = _add_product(weights, self.followed[..., group, :, :], targets - weights)
        scales, zeros = self.near.centre(running, pivots)
        best = self.scales[..., group, :]
        with torch.cuda.device_of(targets):  # type: ignore[no-untyped-call]
            group_program.trials[_programs(targets)](
                weights,
                targets,
                self.couplings[..., here, here],
                pivots,
                scales,
                scales if zeros is None else zeros,
                self.codes[..., here, :],
                best,
                best if self.zeros is None else self.zeros[..., group, :],
                targets.shape[-1],
                self.pivots.shape[-1],
                weights.stride(0) if weights.ndim == 3 else 0,
                weights.stride(-2),
                SIZE=self.size,
                FACTORS=self.near.factors,
                **_options(self.grid),
            )


def _followed(couplings: torch.Tensor, size: int) -> torch.Tensor:
    """Transposed inverses of the groups' couplings, (.., groups, size, size): `ldlq._running`."""
    *lead, d, _ = couplings.shape
    blocks = couplings.view(*lead, d // size, size, d // size, size).diagonal(dim1=-4, dim2=-2)
    identity = torch.eye(size, dtype=couplings.dtype, device=couplings.device)
    inverse: torch.Tensor = torch.linalg.solve_triangular(
        blocks.movedim(-1, -3), identity, upper=False, unitriangular=True
    )
    return inverse.mT


def _add_product(added: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """`added` + `a` @ `b`, all of two dimensions, or of three."""
    return torch.addmm(added, a, b) if a.ndim == 2 else torch.baddbmm(added, a, b)


def _programs(panel: torch.Tensor) -> tuple[int, int]:
    """Tiles of rows, and experts, of tensors (.., size, rows)."""
    return triton.cdiv(panel.shape[-1], ROWS), panel.shape[:-2].numel()


def _options(grid: AffineGrid) -> dict[str, Any]:
    """What both programs are compiled for. Multiply-adds stay unfused, as they are on a CPU."""
    return {
        "GRID": constants(grid),
        "ROWS": ROWS,
        "num_warps": WARPS,
        "enable_fp_fusion": False,
    }


def constants(grid: AffineGrid) -> tuple[int, bool, bool, tuple[str, float, float]]:
    """A grid as the programs know it."""
    return grid.bits, grid.symmetric, grid.signed, (STORED[grid.dtype], *grid.limits)
