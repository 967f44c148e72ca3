"""Round to nearest, with scales of least weighted error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from quantkit.core.method import Method, Solved
from quantkit.core.scheme import Scheme
from quantkit.grid.affine import AffineGrid
from quantkit.grid.quadratic import relative_loss
from quantkit.grid.search import importance_of, nearest
from quantkit.grid.threads import one_thread

if TYPE_CHECKING:
    from quantkit.stats.inputs import InputStats


@dataclass(frozen=True)
class Options:
    """search: fit scales to least error, weighted by the Hessian's diagonal where inputs are known.

    signed: symmetric scales may be negative, which puts the largest weight on the outermost code.
    """

    search: bool = True
    signed: bool = True


@one_thread()
def quantize(
    weights: list[torch.Tensor],
    stats: InputStats | None,
    scheme: Scheme,
    scale_dtype: torch.dtype,
    options: Options,
) -> list[Solved]:
    """Each weight rounded by itself."""
    grid = AffineGrid(scheme.bits, scheme.symmetric, scale_dtype, options.signed)
    importance = (
        importance_of(stats.diagonal) if stats else weights[0].new_ones(weights[0].shape[1])
    )
    solved = []
    for weight in weights:
        qtensor = nearest(weight, importance if options.search else None, scheme, grid)
        loss = None
        if stats:
            loss = relative_loss(qtensor.dequantize() - weight, weight, stats.hessian)
        solved.append(Solved(qtensor, loss))
    return solved


METHOD = Method(
    name="rtn",
    summary="round to nearest, scales searched; no solve",
    paper="the baseline of all others; scale search after OCTAV (arXiv 2206.06501) and llama.cpp",
    grids=frozenset(("int", bits) for bits in (2, 3, 4, 8)),
    needs_inputs=False,
    options=Options,
    quantize=quantize,
)
