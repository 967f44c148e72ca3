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


def losses_of(error: torch.Tensor, weight: torch.Tensor, hessian: torch.Tensor) -> torch.Tensor:
    """fp32 (2, rows): the squared output error and the squared output of each row.

    error, weight: fp32 (rows, in_features); hessian: fp32 (in_features, in_features).
    """
    return torch.stack((row_losses(error, hessian), row_losses(weight, hessian)))
