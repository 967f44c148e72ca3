"""Round to nearest, with scales of least weighted error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantkit.core.method import GroupShape, Method, Solved
from quantkit.core.scheme import Scheme
from quantkit.grid.threads import one_thread
from quantkit.grid.workspace import copies, rounding_each

if TYPE_CHECKING:
    import torch

    from quantkit.grid.rounding import Rounding
    from quantkit.stats.inputs import InputStats


@dataclass(frozen=True)
class RtnOptions:
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
    grid: Rounding,
    options: RtnOptions,
) -> list[Solved]:
    """Each weight, fp32 (rows, in_features), rounded by itself; none is modified."""
    from quantkit.grid.nearest import round_each

    hessian = stats.hessian if stats else None
    return round_each(
        weights, hessian, scheme, grid.signs(signed=options.signed), search=options.search
    )


def workspace(group: GroupShape) -> int:
    """Bytes: copies in fp32, and one linear rounded at a time."""
    return copies(group) + rounding_each(group)


METHOD = Method(
    name="rtn",
    summary="round to nearest, scales searched; no solve",
    paper="the baseline of all others; scale search after OCTAV (arXiv 2206.06501) and llama.cpp",
    grids="any",
    needs_inputs=False,
    options=RtnOptions,
    workspace=workspace,
    quantize=quantize,
)
