"""Quadratic forms of a Hessian: what an error in the weights costs at the output."""

from __future__ import annotations

import torch

BLOCK = 128


def row_losses(error: torch.Tensor, hessian: torch.Tensor) -> torch.Tensor:
    """(rows,): e H e^T of each row of `error` (rows, in_features), with half the products.

    H is symmetric, so the part below its diagonal is not multiplied but counted twice.
    """
    total = error.new_zeros(error.shape[0])
    for i in range(0, hessian.shape[0], BLOCK):
        block = error[:, i : i + BLOCK]
        pushed = block @ hessian[i : i + BLOCK, i : i + BLOCK]
        if i:
            pushed.addmm_(error[:, :i], hessian[:i, i : i + BLOCK], alpha=2)
        total += torch.linalg.vecdot(pushed, block)
    return total


def relative_loss(error: torch.Tensor, weight: torch.Tensor, hessian: torch.Tensor) -> float:
    """tr(E H E^T) / tr(W H W^T): the relative squared error of the output; 0 where both are 0."""
    lost = row_losses(error, hessian).double().sum()
    whole = row_losses(weight, hessian).double().sum()
    return float(lost / whole) if whole > 0 else 0.0
