"""Scales that several rows share: those of blocks of 128 by 128 weights, or of a whole weight."""

from __future__ import annotations

from dataclasses import replace

import torch

from quantkit.core.scheme import Scheme
from quantkit.grid.floats import scales_of
from quantkit.grid.minifloat import MiniFloat
from quantkit.grid.qtensor import QTensor
from quantkit.grid.rounding import Rounding
from quantkit.grid.search import search_scales


def dequantized(qtensor: QTensor, numbers: MiniFloat) -> torch.Tensor:
    """The weight, fp32 (rows, in_features), of codes that stand for `numbers`."""
    scales = scales_of(qtensor.scales)
    if qtensor.global_scale is not None:
        scales = scales / qtensor.global_scale
    return multiplied(numbers.values(qtensor.codes), scales, qtensor.scheme)


def multiplied(values: torch.Tensor, scales: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """`values`, fp32 (rows, in_features), times the scales of their blocks, in place.

    scales: fp32 (blocks of rows, groups) of a weight; the last block and group may be cut.
    """
    rows, width = values.shape
    size = scheme.group_size or width
    scales = by_row(scales, rows, scheme)
    whole = width // size
    values[:, : whole * size].view(rows, whole, size).mul_(scales[:, :whole, None])
    if whole * size < width:
        values[:, whole * size :].mul_(scales[:, whole:])
    return values


def by_row(scales: torch.Tensor, rows: int, scheme: Scheme) -> torch.Tensor:
    """The scales of each row, (rows, groups), from those of blocks of rows; any dtype."""
    if scheme.rows == 1:
        return scales
    return scales.repeat_interleave(scheme.rows or rows, 0)[:rows]


def by_block(qtensor: QTensor, scheme: Scheme) -> QTensor:
    """The same weight in a `scheme` of blocks, from one whose rows have equal scales in blocks."""
    return replace(
        qtensor, scales=qtensor.scales[:: scheme.rows or len(qtensor.codes)].clone(), scheme=scheme
    )


def block_scales(
    weight: torch.Tensor, importance: torch.Tensor | None, scheme: Scheme, grid: Rounding
) -> torch.Tensor:
    """Scales fp32 (blocks of rows, groups) of a weight, fp32 (rows, in_features); not modified.

    importance: fp32 (in_features,), the weights of squared errors; with None scales span blocks.
    """
    rows, width = weight.shape
    if scheme.rows is None:  # one scale, found before: nothing to search
        importance = None
    size = scheme.group_size or width
    cut = width % size
    found = []
    for strip in torch.split(weight, scheme.rows or rows):
        parts = ((slice(width - cut), size), (slice(width - cut, width), cut))
        line = [
            _scales(strip[:, here], None if importance is None else importance[here], wide, grid)
            for here, wide in parts
            if here.stop and wide
        ]
        found.append(torch.cat(line))
    return torch.stack(found)


def _scales(
    strip: torch.Tensor, importance: torch.Tensor | None, size: int, grid: Rounding
) -> torch.Tensor:
    """Scales, fp32 (groups,), of the blocks side by side in a strip (rows, groups x size)."""

    def panel(values: torch.Tensor) -> torch.Tensor:
        blocks = values.reshape(len(strip), -1, size).transpose(1, 2)
        return blocks.reshape(len(strip) * size, -1)

    values = panel(strip)
    if importance is None:
        return grid.span(values)[0]
    return search_scales(values, panel(importance.expand_as(strip)), grid)[0]


def rounded_to(
    weight: torch.Tensor, scales: torch.Tensor, scheme: Scheme, grid: Rounding
) -> QTensor:
    """`weight`, fp32 (rows, in_features), rounded to nearest under storable `scales`, not modified.

    scales: fp32, as of a QTensor of the scheme.
    """
    steps = multiplied(weight.clone(), 1 / scales, scheme)
    codes = grid.codes(grid.snap(None)(steps, steps), None)
    return QTensor(codes, grid.stored(scales), None, scheme, global_scale=grid.global_scale)
