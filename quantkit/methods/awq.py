"""AWQ: scale up the weights of channels with large inputs before rounding; shrink the producer.

AWQ, arXiv 2306.00978, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantkit.core.method import GroupShape, Method, Solved
from quantkit.core.scheme import Scheme
from quantkit.grid.threads import one_thread
from quantkit.grid.workspace import FP32, copies, folding, square

if TYPE_CHECKING:
    import torch

    from quantkit.grid.rounding import Rounding
    from quantkit.stats.inputs import InputStats

ROWS = 256  # of all rows of a group, evenly spaced: enough to rank candidates
GAIN = 0.98  # of the loss without rescaling, at most; less does not justify a changed producer
POWERS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)  # of the inputs' magnitude; larger ones were never best


@dataclass(frozen=True)
class AwqOptions:
    """Every ingredient can be switched off.

    rescale: search scales of input channels.
    clip: fit each group's range to least weighted error, instead of spanning it.
    signed: symmetric scales may be negative, which puts the largest weight on the outermost code.
    sink: weight of the sequences' first tokens where keys and values are made, in units of all
        tokens together.
    """

    rescale: bool = True
    clip: bool = True
    signed: bool = True
    sink: float = 1.0


@one_thread()
def rescale(
    weights: list[torch.Tensor],
    stats: InputStats,
    scheme: Scheme,
    grid: Rounding,
    options: AwqOptions,
) -> torch.Tensor | None:
    """Channel scales, fp32 (in_features,), of least output error tr(E H E^T), or None for none.

    `weights` are fp32 (rows, in_features) and not modified. Scales are magnitude^power (section
    3.2, equation 5), with the geometric mean of their extremes normalized to 1. The error of a
    linear's output follows from the Hessian alone, so no forward is run (the paper replays the
    block for each of 20 candidates).
    """
    if not options.rescale:
        return None
    import torch

    from quantkit.grid.nearest import importance_of, nearest
    from quantkit.grid.quadratic import row_losses

    stacked = torch.cat(weights)
    rows = stacked[:: -(-len(stacked) // ROWS)]
    grid = grid.signs(signed=options.signed)
    hessian = stats.attended(options.sink)
    importance = importance_of(hessian.diagonal())

    def loss(s: torch.Tensor) -> torch.Tensor:
        searched = importance / s.square() if options.clip else None
        scaled = rows * s
        back = nearest(scaled, searched, scheme, grid.provisional([scaled])).dequantize() / s
        return row_losses(back - rows, hessian).sum()

    magnitude = importance.sqrt()
    ratios = [magnitude**power for power in POWERS]
    candidates = [ratio / (ratio.amax() * ratio.amin()).sqrt() for ratio in ratios]
    tried = [loss(s) for s in (torch.ones_like(magnitude), *candidates)]
    plain, *found = torch.stack(tried).cpu().tolist()  # one wait for the device
    best = min(range(len(found)), key=found.__getitem__)
    return candidates[best] if found[best] < GAIN * plain else None


@one_thread()
def quantize(
    weights: list[torch.Tensor],
    stats: InputStats | None,
    scheme: Scheme,
    grid: Rounding,
    options: AwqOptions,
) -> list[Solved]:
    """Each (rescaled) weight, fp32 (rows, in_features), rounded by itself; none is modified."""
    from quantkit.grid.nearest import round_each

    grid = grid.signs(signed=options.signed)
    hessian = stats.hessian if stats else None
    return round_each(weights, hessian, scheme, grid, search=options.clip)


def workspace(group: GroupShape) -> int:
    """Bytes: the larger of trying candidates on some rows, and of folding the best one."""
    trying = (1 if group.mixes_tokens else 0) * square(group) + 8 * FP32 * ROWS * group.inputs
    return max(copies(group) + FP32 * group.weights + trying, folding(group))


METHOD = Method(
    name="awq",
    summary="channel scales folded into the producer, then round to nearest; no solve",
    paper="AWQ, arXiv 2306.00978; scales and clipping from the Hessian instead of forwards",
    grids="any",
    needs_inputs=True,
    options=AwqOptions,
    workspace=workspace,
    quantize=quantize,
    rescale=rescale,
)
