"""NF4: blocks of the flattened weight on 16 quantiles of a normal distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from quantkit.core.method import Method, Solved
from quantkit.core.scheme import Scheme
from quantkit.grid.dynamic8 import nested_scales, nested_of
from quantkit.grid.normal4 import NF4
from quantkit.grid.qtensor import QTensor
from quantkit.grid.quadratic import relative_loss
from quantkit.grid.search import importance_of
from quantkit.grid.threads import one_thread

if TYPE_CHECKING:
    from quantkit.stats.inputs import InputStats

FRACTIONS = tuple(0.7 + 0.04 * i for i in range(11))  # of the absmax, tried by the search
BLOCKS = 1 << 14  # handled at a time


@dataclass(frozen=True)
class Options:
    """search: scales of least error, weighted by the Hessian's diagonal where inputs are known.

    Without it, codes and scales are those of bitsandbytes, bit for bit.
    """

    search: bool = True


@one_thread()
def quantize(
    weights: list[torch.Tensor],
    stats: InputStats | None,
    scheme: Scheme,
    scale_dtype: torch.dtype,  # noqa: ARG001 - NF4 keeps fp32, or 8 bits
    options: Options,
) -> list[Solved]:
    """Each weight by itself."""
    solved = []
    for weight in weights:
        importance = importance_of(stats.diagonal) if stats else weight.new_ones(weight.shape[1])
        qtensor = _rounded(weight, importance if options.search else None, scheme)
        loss = None
        if stats:
            loss = relative_loss(qtensor.dequantize() - weight, weight, stats.hessian)
        solved.append(Solved(qtensor, loss))
    return solved


def _rounded(weight: torch.Tensor, importance: torch.Tensor | None, scheme: Scheme) -> QTensor:
    size = scheme.group_size or weight.numel()
    blocks = weight.reshape(-1, size)
    scales = blocks.abs().amax(1)
    if importance is not None:
        scales = _searched(blocks, scales, importance.view(-1, size))
    nested = nested_of(scales) if scheme.double_quant else None
    stored = scales if nested is None else nested_scales(nested)
    # bitsandbytes rounds by the scale before its own rounding; a search may know it already
    by = stored if importance is not None else scales
    codes = torch.cat(
        [nearest(b, s) for b, s in zip(blocks.split(BLOCKS), by.split(BLOCKS), strict=True)]
    )
    return QTensor(codes.view(weight.shape), stored, None, scheme, nested)


def nearest(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """uint8 codes of the nearest NF4 values of blocks (n, size) under scales (n,); ties go down."""
    table = NF4.to(blocks.device)
    scaled = (blocks * (1.0 / scales.clamp(min=1e-38))[:, None]).clamp_(-1, 1)
    return torch.bucketize(scaled, (table[1:] + table[:-1]) / 2, out_int32=True).to(torch.uint8)


def _searched(
    blocks: torch.Tensor, spans: torch.Tensor, importance: torch.Tensor
) -> torch.Tensor:
    """Scales (n,) of least weighted error; rows of `importance` repeat along the blocks."""
    table = NF4.to(blocks.device)
    found = []
    rows = max(1, BLOCKS // len(importance)) * len(importance)
    for part, span in zip(blocks.split(rows), spans.split(rows), strict=True):
        weights = importance.repeat(len(part) // len(importance), 1)
        best, least = span, torch.full_like(span, torch.inf)
        for fraction in FRACTIONS:
            scale = span * fraction
            error = table[nearest(part, scale).int()].mul_(scale[:, None]).sub_(part)
            cost = error.square_().mul_(weights).sum(1)
            better = cost < least
            best, least = torch.where(better, scale, best), torch.where(better, cost, least)
        found.append(best)
    return torch.cat(found)


METHOD = Method(
    name="nf4",
    summary="NormalFloat, for bitsandbytes; scales searched, or bit for bit its own",
    paper="QLoRA (arXiv 2305.14314), section 3",
    grids=frozenset({("nf4", 4)}),
    needs_inputs=False,
    options=Options,
    quantize=quantize,
)
