"""Moves weights to make up for what quantized predecessors have done to their inputs."""

import torch

from quantkit.grid.threads import one_thread
from quantkit.stats.inputs import InputStats

DAMP = 0.05
"""Added to the diagonal of H, in units of its mean."""


@one_thread()
def compensated(weights: list[torch.Tensor], stats: InputStats) -> list[torch.Tensor]:
    """The weights, fp32 (rows, in_features), whose outputs are nearest the original ones.

    With x the inputs that quantized predecessors give, o those of the original model and
    H = sum x x^T, the least squares of W' x - W o give W' = W + W (sum (o - x) x^T) H^-1 (QEP,
    arXiv 2504.09629, section 4; GPTAQ, arXiv 2504.02692). H is damped. The weights themselves where
    `stats` has no drift, or H no factor; neither is modified.
    """
    if stats.drift is None:
        return weights
    damped = stats.hessian.clone()
    damped.diagonal().add_(DAMP * stats.diagonal.mean())
    lower, info = torch.linalg.cholesky_ex(damped)
    if int(info):  # one wait for the device
        return weights
    moves = torch.cholesky_solve(stats.drift.T, lower).T
    return [torch.addmm(weight, weight, moves) for weight in weights]
