"""AWQ: channels with large inputs are enlarged before rounding, and their inputs divided."""

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

RATIOS = tuple(i / 10 for i in range(11))


@dataclass(frozen=True)
class Options:
    """scale: search the channels' factors. clip: search the groups' scales, which clips weights.

    sink: weight of the sequences' first tokens where the group feeds other positions, as in gptq.
    """

    scale: bool = True
    clip: bool = True
    sink: float = 1.0


@one_thread()
def rescale(
    weights: list[torch.Tensor], stats: InputStats, scheme: Scheme, options: Options
) -> torch.Tensor | None:
    """s = rms(x)^r, normalized (equation 5), r of least output error; None where that is r = 0.

    The error of all outputs over all tokens follows from the Hessian alone, without a forward:
    tr(E H E^T), E = Q(W diag s) diag(1/s) - W.
    """
    if not options.scale:
        return None
    stacked = torch.cat(weights)
    hessian = _hessian(stats, options)
    size = (hessian.diagonal() / stats.tokens).sqrt().clamp(min=1e-6)
    best, least = None, torch.inf
    for ratio in RATIOS:
        s = size**ratio
        s = s / (s.max() * s.min()).sqrt()
        lost = _lost(stacked, hessian, scheme, s, options)
        if lost < least:
            best, least = (None if ratio == 0 else s), lost
    return best


def _hessian(stats: InputStats, options: Options) -> torch.Tensor:
    if not stats.mixes_tokens:
        return stats.hessian
    return stats.hessian + options.sink * stats.tokens * stats.sink


def _lost(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    scheme: Scheme,
    s: torch.Tensor,
    options: Options,
) -> float:
    scaled = weight * s
    grid = AffineGrid(scheme.bits, scheme.symmetric, torch.float32)
    importance = importance_of(hessian.diagonal() / s.square()) if options.clip else None
    error = (nearest(scaled, importance, scheme, grid).dequantize() - scaled) / s
    return float(row_losses(error, hessian).double().sum())


@one_thread()
def quantize(
    weights: list[torch.Tensor],
    stats: InputStats | None,
    scheme: Scheme,
    scale_dtype: torch.dtype,
    options: Options,
) -> list[Solved]:
    """Each weight rounded by itself, with scales of least weighted error where `clip` is set."""
    grid = AffineGrid(scheme.bits, scheme.symmetric, scale_dtype)
    importance = None
    if options.clip:
        importance = (
            importance_of(_hessian(stats, options).diagonal())
            if stats
            else weights[0].new_ones(weights[0].shape[1])
        )
    solved = []
    for weight in weights:
        qtensor = nearest(weight, importance, scheme, grid)
        loss = None
        if stats:
            loss = relative_loss(qtensor.dequantize() - weight, weight, stats.hessian)
        solved.append(Solved(qtensor, loss))
    return solved


METHOD = Method(
    name="awq",
    summary="salient channels enlarged, inputs divided; scales and clipping searched",
    paper="AWQ (arXiv 2306.00978), section 3.2",
    grids=frozenset(("int", bits) for bits in (2, 3, 4, 8)),
    needs_inputs=True,
    options=Options,
    quantize=quantize,
    rescale=rescale,
)
