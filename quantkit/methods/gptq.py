"""GPTQ: round column by column, letting later columns absorb the errors of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from quantkit.core.errors import QuantkitError
from quantkit.core.method import Method, Solved
from quantkit.core.options import METHODS, GptqOptions
from quantkit.core.scheme import Scheme
from quantkit.grid.affine import AffineGrid
from quantkit.grid.ldlq import Candidates, Feedback, factor, ldlq
from quantkit.grid.nearest import assemble, importance_of, nearest
from quantkit.grid.quadratic import row_losses
from quantkit.grid.search import search_scales
from quantkit.grid.threads import one_thread

if TYPE_CHECKING:
    from quantkit.grid.qtensor import QTensor
    from quantkit.stats.inputs import InputStats

TRIALS = (1.0, 0.94, 1.06)  # of the scale of least weighted error


@one_thread()
def quantize(
    weights: list[torch.Tensor],
    stats: InputStats | None,
    scheme: Scheme,
    scale_dtype: torch.dtype,
    options: GptqOptions,
) -> list[Solved]:
    """All weights solved as one: their rows share the Hessian and its factor.

    Raises:
        QuantkitError: there are no statistics.
    """
    if stats is None:
        raise QuantkitError("gptq needs calibration inputs", hint="rtn works without")
    grid = AffineGrid(scheme.bits, scheme.symmetric, scale_dtype, options.signed)
    stacked = torch.cat(weights)
    size = scheme.group_size or stacked.shape[1]
    feedback, notes = _feedback(stats, size, options)
    importance = importance_of(stats.diagonal)
    if feedback is None:
        qtensor = nearest(stacked, importance, scheme, grid)
    else:
        qtensor = _solve(stacked, feedback, scheme, grid, options)
    losses = row_losses(qtensor.dequantize().sub_(stacked), stats.hessian)
    if feedback is not None and options.keep_better_rows:
        rounded = nearest(stacked, importance, scheme, grid)
        qtensor, losses = _better_rows(qtensor, losses, rounded, stacked, stats.hessian)
    whole = row_losses(stacked, stats.hessian)
    return list(_split(qtensor, losses, whole, [len(w) for w in weights], notes))


def _feedback(
    stats: InputStats, size: int, options: GptqOptions
) -> tuple[Feedback | None, tuple[str, ...]]:
    """The factor of the damped Hessian with its order, and the fallbacks that it took."""
    hessian = stats.attended(options.sink)
    order = _order(hessian.diagonal(), size, options)
    ordered = hessian.index_select(0, order).index_select(1, order)
    diagonal = ordered.diagonal().clone()
    unit = diagonal if options.scale_free_damping else diagonal.mean()
    notes: tuple[str, ...] = ()
    for damp, dtype in _ladder(options.damp):
        ordered.diagonal().copy_(diagonal + damp * unit)
        feedback = factor(ordered.to(dtype), order)
        if feedback is not None:
            return feedback, notes
        notes = (*notes, f"no Cholesky factor with damp {damp:g} in {str(dtype)[6:]}")
    return None, (*notes, "rounded to nearest")


def _ladder(damp: float) -> Iterator[tuple[float, torch.dtype]]:
    """What is tried until the Hessian is positive definite: precision first, then more damping."""
    yield damp, torch.float32
    yield damp, torch.float64
    for factor_ in (10, 100):
        yield factor_ * max(damp, 1e-3), torch.float64


def _order(diagonal: torch.Tensor, size: int, options: GptqOptions) -> torch.Tensor:
    """Channel at each position; the last is rounded first (GAR, arXiv 2505.14638).

    Groups by mean, and channels within a group, so that codes written back in their natural order
    keep one scale per run of `size` channels.
    """
    if options.order == "natural":
        return torch.arange(diagonal.numel(), device=diagonal.device).flip(0)
    grouped = diagonal.view(-1, size)
    groups = grouped.mean(1).argsort(stable=True)
    within = grouped.argsort(stable=True, dim=1)[groups]
    return (groups[:, None] * size + within).flatten()


def _solve(
    stacked: torch.Tensor,
    feedback: Feedback,
    scheme: Scheme,
    grid: AffineGrid,
    options: GptqOptions,
) -> QTensor:
    """The stacked weights rounded with feedback, back in the natural order of channels."""

    def candidates(targets: torch.Tensor, pivots: torch.Tensor) -> Candidates:
        if options.search == "minmax":
            scales, zeros = grid.span(targets)
        else:
            scales, zeros = search_scales(targets, pivots, grid)
        tried = TRIALS if options.search == "trial" else (1.0,)
        around = torch.stack([grid.storable(scales * t) for t in tried])
        return around, None if zeros is None else zeros.expand_as(around)

    order = feedback.order
    size = scheme.group_size or stacked.shape[1]
    codes, scales, zeros = ldlq(stacked.T[order], feedback, grid, size, candidates)
    natural, groups = torch.empty_like(codes), order[::size] // size
    natural[order] = codes
    back = groups.argsort()
    return assemble(
        natural, list(scales[back]), [None] if zeros is None else list(zeros[back]), scheme, grid
    )


def _better_rows(
    solved: QTensor,
    losses: torch.Tensor,
    rounded: QTensor,
    stacked: torch.Tensor,
    hessian: torch.Tensor,
) -> tuple[QTensor, torch.Tensor]:
    """Row by row the one of less loss: rows are independent, so neither is ever beaten."""
    others = row_losses(rounded.dequantize().sub_(stacked), hessian)
    better = (losses <= others)[:, None]
    zeros = None
    if solved.zeros is not None and rounded.zeros is not None:
        zeros = torch.where(better, solved.zeros, rounded.zeros)
    mixed = replace(
        solved,
        codes=torch.where(better, solved.codes, rounded.codes),
        scales=torch.where(better, solved.scales, rounded.scales),
        zeros=zeros,
    )
    return mixed, torch.minimum(losses, others)


def _split(
    qtensor: QTensor,
    losses: torch.Tensor,
    whole: torch.Tensor,
    rows: list[int],
    notes: tuple[str, ...],
) -> Iterator[Solved]:
    """One Solved for each of the weights that were stacked."""
    start = 0
    for count in rows:
        part = slice(start, start + count)
        power = float(whole[part].double().sum())
        loss = float(losses[part].double().sum()) / power if power > 0 else 0.0
        zeros = None if qtensor.zeros is None else qtensor.zeros[part].clone()
        own = replace(
            qtensor,
            codes=qtensor.codes[part].clone(),
            scales=qtensor.scales[part].clone(),
            zeros=zeros,
        )
        yield Solved(own, loss, notes)
        start += count


METHOD = Method(
    name="gptq",
    summary="column by column with error feedback; the best at 3 and 4 bits",
    paper="GPTQ, arXiv 2210.17323; as LDLQ, arXiv 2307.13304; order by GAR, arXiv 2505.14638",
    grids=METHODS["gptq"].grids,
    needs_inputs=True,
    options=GptqOptions,
    quantize=quantize,
)
