"""SmoothQuant: 8-bit weights and activations, outliers moved from the one to the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from quantkit.core.method import Method, Solved
from quantkit.core.scheme import Scheme
from quantkit.grid.affine import AffineGrid
from quantkit.grid.quadratic import relative_loss, row_losses
from quantkit.grid.search import importance_of, nearest
from quantkit.grid.threads import one_thread

if TYPE_CHECKING:
    from quantkit.stats.inputs import InputStats

ALPHAS = tuple(i / 10 for i in range(11))


@dataclass(frozen=True)
class Options:
    """alpha: share of the outliers that goes into the weights; below 0 it is searched per pair."""

    alpha: float = -1.0


@one_thread()
def rescale(
    weights: list[torch.Tensor], stats: InputStats, scheme: Scheme, options: Options
) -> torch.Tensor | None:
    """s = max|x|^alpha / max|w|^(1 - alpha) per channel (equation 4), of least expected error.

    The error is that of the rounded weights on the calibration inputs, and that of inputs rounded
    with one step per token, a uniform error of variance step^2 / 12 in each channel.
    """
    stacked = torch.cat(weights)
    inputs = stats.absmax.clamp(min=1e-5)
    columns = stacked.abs().amax(0).clamp(min=1e-5)
    tried = (options.alpha,) if options.alpha >= 0 else ALPHAS
    best, least = None, torch.inf
    for alpha in tried:
        s = inputs**alpha / columns ** (1 - alpha)
        s = s / s.log().mean().exp()
        lost = _expected(stacked, stats, scheme, s)
        if lost < least:
            best, least = s, lost
    if options.alpha < 0 and _expected(stacked, stats, scheme, torch.ones_like(inputs)) <= least:
        return None
    return best


def _expected(
    weight: torch.Tensor, stats: InputStats, scheme: Scheme, s: torch.Tensor
) -> float:
    scaled = weight * s
    grid = AffineGrid(scheme.bits, scheme.symmetric, torch.float32)
    rounded = nearest(scaled, None, scheme, grid).dequantize()
    of_weights = row_losses((rounded - scaled) / s, stats.hessian).double().sum()
    steps = (stats.sample / s).abs().amax(1).double() / 127
    per_token = steps.square().mean() / 12 * scaled.double().square().sum()
    return float(of_weights + stats.tokens * per_token)


@one_thread()
def quantize(
    weights: list[torch.Tensor],
    stats: InputStats | None,
    scheme: Scheme,
    scale_dtype: torch.dtype,
    options: Options,  # noqa: ARG001 - they concern the rescaling
) -> list[Solved]:
    """Each weight rounded by itself, with searched scales."""
    grid = AffineGrid(scheme.bits, scheme.symmetric, scale_dtype)
    solved = []
    for weight in weights:
        importance = importance_of(stats.diagonal) if stats else weight.new_ones(weight.shape[1])
        qtensor = nearest(weight, importance, scheme, grid)
        loss = None
        if stats:
            loss = relative_loss(qtensor.dequantize() - weight, weight, stats.hessian)
        solved.append(Solved(qtensor, loss))
    return solved


METHOD = Method(
    name="smoothquant",
    summary="8-bit weights and activations, outliers folded into the weights",
    paper="SmoothQuant (arXiv 2211.10438), section 4",
    grids=frozenset({("int", 8)}),
    needs_inputs=True,
    options=Options,
    quantize=quantize,
    rescale=rescale,
)
