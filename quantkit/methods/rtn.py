"""Round to nearest, with scales of least weighted error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from quantkit.core.method import Method, Solved
from quantkit.core.options import METHODS, RtnOptions
from quantkit.core.scheme import Scheme
from quantkit.grid.affine import AffineGrid
from quantkit.grid.nearest import round_each
from quantkit.grid.threads import one_thread

if TYPE_CHECKING:
    from quantkit.stats.inputs import InputStats


@one_thread()
def quantize(
    weights: list[torch.Tensor],
    stats: InputStats | None,
    scheme: Scheme,
    scale_dtype: torch.dtype,
    options: RtnOptions,
) -> list[Solved]:
    """Each weight rounded by itself."""
    grid = AffineGrid(scheme.bits, scheme.symmetric, scale_dtype, options.signed)
    hessian = stats.hessian if stats else None
    return round_each(weights, hessian, scheme, grid, search=options.search)


METHOD = Method(
    name="rtn",
    summary="round to nearest, scales searched; no solve",
    paper="the baseline of all others; scale search after OCTAV (arXiv 2206.06501) and llama.cpp",
    grids=METHODS["rtn"].grids,
    needs_inputs=False,
    options=RtnOptions,
    quantize=quantize,
)
