"""Descent by groups: each group of inputs is solved again, given the errors of all others.

With e_J the error of a group J and e_I that of the others, the loss is least at
e_J = -e_I H_IJ H_JJ^-1: the group is rounded by LDLQ under H_JJ towards the weights that are so
moved. As with the greedy passes of QuIP (arXiv 2307.13304, section 3.2), no step raises the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quantkit.grid.ldlq import Choose, run_trials
from quantkit.grid.rounding import Rounding


@dataclass(frozen=True)
class Columns:
    """Rows that are quantized, transposed: one column of a weight after the other.

    `values` are the dequantized ones, fp32 (in_features, rows), `codes` uint8 alike; `scales` and
    `zeros` fp32 (groups, rows), zeros None without zero points.
    """

    values: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None


def descend(
    weights: torch.Tensor,
    found: Columns,
    hessian: torch.Tensor,
    diagonal: torch.Tensor,
    grid: Rounding,
    choose: Choose,
) -> None:
    """Solves every group once more, in place of `found` where the loss falls; large inputs first.

    weights: fp32 (in_features, rows); hessian: fp32 (in_features, in_features), whose diagonal is
    `diagonal` (in_features,). Groups are as large as each other.
    """
    size = len(weights) // len(found.scales)
    errors = weights - found.values
    means = diagonal.view(-1, size).mean(1)
    for group in means.argsort(descending=True, stable=True).tolist():
        here = slice(group * size, (group + 1) * size)
        at = diagonal[here].argsort(stable=True) + group * size  # the last is rounded first
        errors[here] = 0
        across = hessian[at]
        own = across[:, at]
        own.diagonal().copy_(diagonal[at])
        lower, _ = torch.linalg.cholesky_ex(own)  # without a factor no loss is a number, or lower
        targets = weights[at] + torch.cholesky_solve(across @ errors, lower)
        _solve(group, at, targets, lower, found, grid, choose)
        torch.sub(weights[here], found.values[here], out=errors[here])


def _solve(
    group: int,
    at: torch.Tensor,
    targets: torch.Tensor,
    lower: torch.Tensor,
    found: Columns,
    grid: Rounding,
    choose: Choose,
) -> None:
    """A group's columns `at`, rounded towards `targets` (group_size, rows), where that is better.

    `lower`: the Cholesky factor of their Hessian, (group_size, group_size).
    """
    roots = lower.diagonal()
    couplings, pivots = lower / roots, roots.square()
    scales, zeros = choose(targets, pivots)
    snap = grid.snap(None if zeros is None else zeros.flatten())
    steps, cost = run_trials(targets, targets, couplings, pivots, scales, snap)
    best = cost.argmin(0, keepdim=True)
    step = steps.gather(1, best.expand(len(steps), 1, -1)).squeeze(1)
    scale = scales.gather(0, best)[0]
    zero = None if zeros is None else zeros.gather(0, best)[0]
    before = pivots @ (couplings.T @ (targets - found.values[at])).square_()
    better = cost.gather(0, best)[0] < before
    found.values[at] = torch.where(better, step * scale, found.values[at])
    found.scales[group] = torch.where(better, scale, found.scales[group])
    if found.zeros is not None and zero is not None:
        found.zeros[group] = torch.where(better, zero, found.zeros[group])
    found.codes[at] = torch.where(better, grid.codes(step, zero), found.codes[at])
