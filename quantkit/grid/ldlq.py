"""LDLQ: rounds column after column; each absorbs the errors of the columns before it.

With H = L L^T, L lower triangular, the loss of an error e is e H e^T = sum_j D_j r_j^2, where
D_j = L_jj^2 and r_j = e_j + sum_{i>j} e_i L_ij / L_jj. The last column is therefore rounded first,
and each other one after the errors so far have moved its target (QuIP, arXiv 2307.13304,
section 3). The codes equal those of GPTQ (arXiv 2210.17323, section 4). GPTQ factors, inverts and
factors again; one Cholesky factorization does here, with a quarter of the operations and better
conditioning.

Weights are transposed, (in_features, rows): a column of the papers is a contiguous row here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from quantkit.grid.kernel import kernel_for
from quantkit.grid.rounding import Rounding, Snap
from quantkit.grid.search import Near

LEAF = 16  # columns rounded one by one between two matrix products

Candidates = tuple[torch.Tensor, torch.Tensor | None]
"""Scales and zeros of one group to try, fp32 (trials, rows) each; zeros None where symmetric."""
Choose = Callable[[torch.Tensor, torch.Tensor], Candidates]
"""Candidates for running weights (group_size, rows) and pivots (group_size,), both fp32."""


@dataclass(frozen=True)
class Feedback:
    """The rounding order, and how the error of one channel moves the targets of the others.

    order: int64 (d,), the channel at each position; the last position is rounded first.
    couplings: fp32 (d, d) by position, unit lower triangular: L_ij / L_jj. Entry [i, j], i > j, is
        the share of error i that is added to target j.
    pivots: fp32 (d,), D_j by position.
    diagonal: fp32 (d,), of the Hessian that was factored, by position.
    """

    order: torch.Tensor
    couplings: torch.Tensor
    pivots: torch.Tensor
    diagonal: torch.Tensor


def factor(ordered: torch.Tensor, order: torch.Tensor) -> Feedback | None:
    """Feedback of a Hessian (d, d) whose rows and columns are in the order of `order` (d,).

    None if the Hessian is not positive definite. It is factored in its own dtype, fp32 or fp64,
    and not modified.
    """
    # cholesky_ex reports failure in `info`; cholesky would raise, and on CUDA only later.
    lower, info = torch.linalg.cholesky_ex(ordered)
    diagonal = lower.diagonal().clone()
    good = (info == 0) & torch.isfinite(diagonal).all() & (diagonal > 0).all()
    if not good:  # one wait for the device
        return None
    own = ordered.diagonal().float().clone()
    return Feedback(order, lower.div_(diagonal).float(), diagonal.square().float(), own)


def ldlq(
    columns: torch.Tensor,
    feedback: Feedback,
    grid: Rounding,
    group_size: int,
    candidates: Choose,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Codes uint8 (d, rows), scales and zeros fp32 (groups, rows), in the order of `feedback`.

    columns: fp32 (d, rows), the weights by position; not modified. `candidates` proposes scales for
    each group. Each candidate runs through the recursion inside the group, and every row keeps the
    one with the lowest loss. Groups are contiguous by position; the last may be smaller.

    A kernel takes experts as a leading dimension of all tensors, too; it knows no candidates but
    `Near`.
    """
    kernel = kernel_for(columns, group_size, grid) if isinstance(candidates, Near) else None
    state = kernel.GroupRows if kernel else _Rows
    rows = state(columns, feedback.couplings, feedback.pivots, grid, group_size, candidates)
    halve(rows.targets, rows.targets, feedback.couplings, group_size, rows.round_group)
    return rows.codes, rows.scales, rows.zeros


def ldlq_known(
    columns: torch.Tensor,
    feedback: Feedback,
    grid: Rounding,
    groups: list[int],
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
) -> torch.Tensor:
    """As `ldlq`, under scales and zeros that were chosen before, fp32 (groups, rows).

    `groups`: that of each position; those of a group need not be neighbours.
    """
    targets = columns.clone(memory_format=torch.contiguous_format)
    codes = torch.empty_like(targets, dtype=torch.uint8)

    def round_leaf(start: int, stop: int) -> None:
        errors, steps = torch.zeros_like(targets[start:stop]), targets[start:stop].clone()
        for j in range(stop - 1, start - 1, -1):
            scale, step = scales[groups[j]], steps[j - start]
            step.addmv_(errors.T, feedback.couplings[start:stop, j]).div_(scale)
            grid.snap(None if zeros is None else zeros[groups[j]])(step, step)
            torch.addcmul(columns[j], step, scale, value=-1, out=errors[j - start])
        targets[start:stop] = errors
        codes[start:stop] = grid.codes(steps, None if zeros is None else zeros[groups[start:stop]])

    halve(targets, targets, feedback.couplings, LEAF, round_leaf)
    return codes


def halve(
    targets: torch.Tensor,
    errors: torch.Tensor,
    couplings: torch.Tensor,
    leaf: int,
    visit: Callable[[int, int], None],
    span: tuple[int, int] | None = None,
) -> None:
    """Visits leaves of at most `leaf` positions from last to first; moves `targets` in between.

    targets, errors: fp32 (d, n), which may be the same tensor; couplings: fp32 (d, d); experts as a
    leading dimension of all of them or of none. `visit` gets start and stop of a leaf and must
    leave its errors in `errors`. One product moves the first half of the positions by the errors of
    the second half, recursively, so that nearly all work is in large products. `span` limits the
    positions; the default is all.
    """
    # A module-level function: a closure that calls itself is a reference cycle, which keeps
    # panels in memory until the garbage collector runs.
    start, stop = span or (0, targets.shape[-2])
    if stop - start <= leaf:
        visit(start, stop)
        return
    leaves = -(-(stop - start) // leaf)
    middle = start + leaves // 2 * leaf
    halve(targets, errors, couplings, leaf, visit, (middle, stop))
    moved = targets[..., start:middle, :]
    add_product = moved.addmm_ if moved.ndim == 2 else moved.baddbmm_
    add_product(couplings[..., middle:stop, start:middle].mT, errors[..., middle:stop, :])
    halve(targets, errors, couplings, leaf, visit, (start, middle))


class _Rows:
    """State of some rows while its groups are rounded.

    `targets` (d, rows) starts as a copy of `weights`. Rounding a group replaces its targets by its
    errors, weight - dequantized, which then move the targets of the remaining groups.
    """

    def __init__(
        self,
        weights: torch.Tensor,
        couplings: torch.Tensor,
        pivots: torch.Tensor,
        grid: Rounding,
        group_size: int,
        candidates: Choose,
    ) -> None:
        self.weights, self.couplings, self.pivots = weights, couplings, pivots
        self.grid, self.size, self.candidates = grid, group_size, candidates
        self.targets = weights.clone(memory_format=torch.contiguous_format)
        self.codes = torch.empty_like(self.targets, dtype=torch.uint8)
        self.scales = self.targets.new_empty(-(-len(weights) // group_size), weights.shape[1])
        self.zeros: torch.Tensor | None = None if grid.symmetric else self.scales.clone()

    def round_group(self, start: int, stop: int) -> None:
        """Rounds the group at positions start .. stop: its targets become its errors."""
        here = slice(start, stop)
        weights, targets = self.weights[here], self.targets[here]
        pivots, couplings = self.pivots[here], self.couplings[here, here]
        first = stop == len(self.targets)  # the last position is rounded first: no errors yet
        running = weights if first else _running(weights, targets, couplings)
        scales, zeros = self.candidates(running, pivots)
        steps, cost = run_trials(weights, targets, couplings, pivots, scales, self._snap(zeros))
        best = cost.argmin(0, keepdim=True)
        steps = steps.gather(1, best.expand(len(steps), 1, -1)).squeeze(1)
        self.scales[start // self.size] = scale = scales.gather(0, best)[0]
        torch.addcmul(weights, steps, scale, value=-1, out=targets)
        zero = None if zeros is None else zeros.gather(0, best)[0]
        if zero is not None and self.zeros is not None:
            self.zeros[start // self.size] = zero
        self.codes[here] = self.grid.codes(steps, zero)

    def _snap(self, zeros: torch.Tensor | None) -> Snap:
        """Rounds the columns of all trials, whose zeros are fp32 (trials, rows), side by side."""
        return self.grid.snap(None if zeros is None else zeros.flatten())


def _running(weights: torch.Tensor, targets: torch.Tensor, couplings: torch.Tensor) -> torch.Tensor:
    """GPTQ's running weights of a group, fp32 (group_size, n): the values its scales must cover.

    weights, targets: fp32 (group_size, n); couplings: fp32 (group_size, group_size). A target
    assumes that the columns between it and the rounded ones are unmoved, which is true only when
    its turn comes. GPTQ moves all remaining columns after each step; solving the triangular system
    gives the same values at once.
    """
    identity = torch.eye(len(couplings), dtype=couplings.dtype, device=couplings.device)
    followed = torch.linalg.solve_triangular(couplings, identity, upper=False, unitriangular=True)
    return torch.addmm(weights, followed.T, targets - weights)


def run_trials(
    weights: torch.Tensor,
    targets: torch.Tensor,
    couplings: torch.Tensor,
    pivots: torch.Tensor,
    scales: torch.Tensor,
    snap: Snap,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Steps fp32 (group_size, trials, rows) under each candidate scale, and losses (trials, rows).

    weights, targets: fp32 (group_size, rows); couplings: (group_size, group_size); pivots:
    (group_size,); scales: (trials, rows). No argument is modified. The loss is sum_j D_j r_j^2 over
    the group, the exact share of the loss in the module docstring, clipping included.
    """
    # In units of the scale a column takes four operations, and no multiplication by scales.
    shape = len(weights), *scales.shape
    inverse = 1 / scales
    scaled = (weights[:, None] * inverse).flatten(1)
    moved = (targets[:, None] * inverse).flatten(1)
    steps, errors = torch.empty_like(moved), torch.zeros_like(moved)
    rows = [each.unbind(0) for each in (scaled, moved, steps, errors)]

    def round_leaf(start: int, stop: int) -> None:
        # Errors of columns not yet rounded are 0, so the product may take the whole leaf.
        finished = errors[start:stop].T
        shares = couplings[start:stop, start:stop].unbind(1)
        for j in range(stop - 1, start - 1, -1):
            weight, target, step, error = (each[j] for each in rows)
            target.addmv_(finished, shares[j - start])
            snap(target, step)
            torch.sub(weight, step, out=error)

    halve(moved, errors, couplings, LEAF, round_leaf)
    cost = pivots @ moved.sub_(steps).square_()
    return steps.view(shape), cost.view_as(scales) * scales.square()
