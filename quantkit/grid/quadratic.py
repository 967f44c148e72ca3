"""Quadratic forms of a Hessian: the squared error at the output from the error in the weights."""

from __future__ import annotations

import torch

from quantkit.grid.tiles import tiles


def row_losses(error: torch.Tensor, hessian: torch.Tensor) -> torch.Tensor:
    """fp32 (rows,): e H e^T of each row of `error` (rows, in_features).

    With H = sum_t x_t x_t^T this is sum_t (e x_t)^2, the squared output error of the row over all
    calibration tokens. hessian: (in_features, in_features), the dtype of `error`; only the blocks
    on and above the diagonal are read. No argument is modified.
    """
    # H is symmetric: blocks above the diagonal count twice, which saves half the products.
    total = error.new_zeros(error.shape[0])
    width = tiles(error.device.type).losses
    for i in range(0, hessian.shape[0], width):
        here = slice(i, i + width)
        block = error[:, here]
        pushed = block @ hessian[here, here]
        if i:
            pushed.addmm_(error[:, :i], hessian[:i, here], alpha=2)
        total += torch.linalg.vecdot(pushed, block)
    return total


def relative_loss(error: torch.Tensor, weight: torch.Tensor, hessian: torch.Tensor) -> float:
    """tr(E H E^T) / tr(W H W^T), the relative squared error of the output; 0 if W H W^T is 0.

    error, weight: fp32 (rows, in_features); hessian: fp32 (in_features, in_features).
    """
    lost = row_losses(error, hessian).double().sum()
    whole = row_losses(weight, hessian).double().sum()
    return ratio(*torch.stack((lost, whole)).cpu().tolist())


def ratio(lost: float, whole: float) -> float:
    """`lost` / `whole`; 0 if `whole` is 0."""
    return lost / whole if whole > 0 else 0.0
