"""LDLQ: columns rounded one after another, each absorbing the errors of those before it.

With H = L L^T, L lower triangular, an error e costs e H e^T = sum_j D_j r_j^2, where D_j = L_jj^2
and r_j = e_j + sum_{i>j} e_i L_ij / L_jj. So the last column is rounded first, and every other one
after its target has been moved by the errors made so far (QuIP, arXiv 2307.13304, section 3; the
codes are those of GPTQ, arXiv 2210.17323, without its inverse). Columns are rows here: contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from quantkit.grid.affine import AffineGrid, Bounds
from quantkit.grid.workspace import NUMBERS

LEAF = 16  # columns rounded singly between two matrix products

Candidates = tuple[torch.Tensor, torch.Tensor | None]
"""Scales and zeros (trials, rows) of one group."""
Choose = Callable[[torch.Tensor, torch.Tensor], Candidates]


@dataclass(frozen=True)
class Feedback:
    """Which channel is rounded when, and how errors move what is still to be rounded.

    order: (d,) channel at each position; the last position is rounded first.
    couplings: (d, d) by position; [i, j], i > j, is the share of error i that moves target j.
    pivots: (d,) D by position.
    """

    order: torch.Tensor
    couplings: torch.Tensor
    pivots: torch.Tensor


def factor(ordered: torch.Tensor, order: torch.Tensor) -> Feedback | None:
    """The feedback of a Hessian (d, d) by position; None where it is not positive definite."""
    lower, info = torch.linalg.cholesky_ex(ordered)
    diagonal = lower.diagonal().clone()
    if info.item() or not torch.isfinite(diagonal).all() or not (diagonal > 0).all():
        return None
    return Feedback(order, lower.div_(diagonal).float(), diagonal.square().float())


def ldlq(
    columns: torch.Tensor,
    feedback: Feedback,
    grid: AffineGrid,
    group_size: int,
    candidates: Choose,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Codes (d, rows) uint8, scales and zeros (groups, rows), all in the order of `feedback`.

    columns: (d, rows), the weights by position. `candidates` gives for a group's running weights
    (group_size, rows) and their pivots the scales to try: each runs through the group, and every
    row keeps the one that cost it least.
    """
    width = max(16, NUMBERS // columns.shape[0])
    parts = []
    for part in torch.split(columns, width, 1):
        rows = _Rows(part, feedback, grid, group_size, candidates)
        halve(rows.targets, rows.targets, feedback.couplings, group_size, rows.round_group)
        parts.append((rows.codes, rows.scales, rows.zeros))
    codes, scales, zeros = zip(*parts, strict=True)
    known = [each for each in zeros if each is not None]
    return torch.cat(codes, 1), torch.cat(scales, 1), torch.cat(known, 1) if known else None


def halve(
    targets: torch.Tensor,
    errors: torch.Tensor,
    couplings: torch.Tensor,
    leaf: int,
    visit: Callable[[int, int], None],
    span: tuple[int, int] | None = None,
) -> None:
    """Visits leaves of at most `leaf` positions from last to first, moving targets in between.

    Each half is moved by the errors of the later one at once: nearly all work is large products.
    `span` are the positions, by default all. (No closure calls itself here: such cycles keep
    panels alive until the collector comes by.)
    """
    start, stop = span or (0, targets.shape[0])
    if stop - start <= leaf:
        visit(start, stop)
        return
    leaves = -(-(stop - start) // leaf)
    middle = start + leaves // 2 * leaf
    halve(targets, errors, couplings, leaf, visit, (middle, stop))
    targets[start:middle].addmm_(couplings[middle:stop, start:middle].T, errors[middle:stop])
    halve(targets, errors, couplings, leaf, visit, (start, middle))


class _Rows:
    """Some rows on their way through the groups; `targets` turn into errors."""

    def __init__(
        self,
        weights: torch.Tensor,
        feedback: Feedback,
        grid: AffineGrid,
        group_size: int,
        candidates: Choose,
    ) -> None:
        self.weights, self.feedback, self.grid = weights, feedback, grid
        self.size, self.candidates = group_size, candidates
        self.targets = weights.clone(memory_format=torch.contiguous_format)
        self.codes = torch.empty_like(self.targets, dtype=torch.uint8)
        self.scales = self.targets.new_empty(len(weights) // group_size, weights.shape[1])
        self.zeros: torch.Tensor | None = None if grid.symmetric else self.scales.clone()

    def round_group(self, start: int, stop: int) -> None:
        """Rounds one group: its targets become its errors."""
        here = slice(start, stop)
        weights, targets = self.weights[here], self.targets[here]
        pivots, couplings = self.feedback.pivots[here], self.feedback.couplings[here, here]
        first = stop == len(self.targets)
        running = weights if first else _running(weights, targets, couplings)
        scales, zeros = self.candidates(running, pivots)
        steps, cost = _run_trials(
            weights, targets, couplings, pivots, scales, self.grid.bounds(zeros)
        )
        best = cost.argmin(0, keepdim=True)
        steps = steps.gather(1, best.expand(len(steps), 1, -1)).squeeze(1)
        self.scales[start // self.size] = scale = scales.gather(0, best)[0]
        torch.addcmul(weights, steps, scale, value=-1, out=targets)
        zero = None if zeros is None else zeros.gather(0, best)[0]
        if zero is not None and self.zeros is not None:
            self.zeros[start // self.size] = zero
        self.codes[here] = steps.sub_(self.grid.bounds(zero)[0])


def _running(weights: torch.Tensor, targets: torch.Tensor, couplings: torch.Tensor) -> torch.Tensor:
    """Where the columns of a group would go if none of them were rounded.

    A target takes columns in between for unmoved; it is true only when its own turn has come. What
    scales must cover are GPTQ's running weights, in which those columns have moved too.
    """
    identity = torch.eye(len(couplings), dtype=couplings.dtype, device=couplings.device)
    followed = torch.linalg.solve_triangular(couplings, identity, upper=False, unitriangular=True)
    return torch.addmm(weights, followed.T, targets - weights)


def _run_trials(
    weights: torch.Tensor,
    targets: torch.Tensor,
    couplings: torch.Tensor,
    pivots: torch.Tensor,
    scales: torch.Tensor,
    bounds: Bounds,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Steps (group_size, trials, rows) of one group under each scale, and cost (trials, rows).

    All in units of the scale, in which a column needs four operations only.
    """
    shape = len(weights), *scales.shape
    inverse = 1 / scales
    scaled = (weights[:, None] * inverse).flatten(1)
    moved = (targets[:, None] * inverse).flatten(1)
    steps, errors = torch.empty_like(moved), torch.zeros_like(moved)
    rows = [each.unbind(0) for each in (scaled, moved, steps, errors)]
    if isinstance(bounds[0], torch.Tensor):
        bounds = bounds[0].flatten(), bounds[1].flatten()

    def round_leaf(start: int, stop: int) -> None:
        finished = errors[start:stop].T  # 0 where it is not: the whole leaf may be multiplied
        shares = couplings[start:stop, start:stop].unbind(1)
        for j in range(stop - 1, start - 1, -1):
            weight, target, step, error = (each[j] for each in rows)
            target.addmv_(finished, shares[j - start])
            torch.clamp(target, *bounds, out=step).round_()
            torch.sub(weight, step, out=error)

    halve(moved, errors, couplings, LEAF, round_leaf)
    cost = pivots @ moved.sub_(steps).square_()
    return steps.view(shape), cost.view_as(scales) * scales.square()
