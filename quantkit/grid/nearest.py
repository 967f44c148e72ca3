"""Round to nearest: the fallback and the baseline of every method."""

from __future__ import annotations

import torch

from quantkit.core.method import Solved
from quantkit.core.scheme import Scheme
from quantkit.grid.blocks import block_scales, rounded_to
from quantkit.grid.qtensor import QTensor
from quantkit.grid.quadratic import losses_of
from quantkit.grid.rounding import Rounding, steps_of
from quantkit.grid.search import search_scales
from quantkit.grid.tiles import groups_at_once

UNSEEN = 1e-4  # least importance of a channel, as a fraction of the mean importance


def round_each(
    weights: list[torch.Tensor],
    hessian: torch.Tensor | None,
    scheme: Scheme,
    grid: Rounding,
    *,
    search: bool,
) -> list[Solved]:
    """Each weight, fp32 (rows, in_features), rounded to nearest, with its losses.

    hessian: fp32 (in_features, in_features) or None; its diagonal weights the squared errors of the
    scale search. Without it all channels weigh the same, and there are no losses. With `search`
    False scales span their groups.
    """
    importance = weights[0].new_ones(weights[0].shape[1])
    if hessian is not None:
        importance = importance_of(hessian.diagonal())
    solved = []
    for weight in weights:
        qtensor = nearest(weight, importance if search else None, scheme, grid)
        losses = None
        if hessian is not None:
            losses = losses_of(qtensor.dequantize().sub_(weight), weight, hessian)
        solved.append(Solved(qtensor, losses))
    return solved


def nearest(
    weight: torch.Tensor, importance: torch.Tensor | None, scheme: Scheme, grid: Rounding
) -> QTensor:
    """`weight`, fp32 (rows, in_features), rounded to nearest; not modified.

    importance: fp32 (in_features,) >= 0, the weights of squared errors in the scale search; with
    None scales span their groups.
    """
    if scheme.rows != 1:
        return rounded_to(weight, block_scales(weight, importance, scheme, grid), scheme, grid)
    return assemble(*searched(weight, importance, scheme, grid), scheme, grid)


def searched(
    weight: torch.Tensor, importance: torch.Tensor | None, scheme: Scheme, grid: Rounding
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor | None]]:
    """Codes, and scales and zeros by group, as `assemble` takes them; the rest as in `nearest`."""
    features, rows = weight.shape[1], len(weight)
    size = scheme.group_size or features
    step = size * groups_at_once(weight.device.type, size, rows, alone=grid.dtype.itemsize > 1)
    columns = weight.t().contiguous()
    codes = torch.empty_like(columns, dtype=torch.uint8)
    scales: list[torch.Tensor] = []
    zeros: list[torch.Tensor | None] = []
    for start in range(0, features, step):
        here = slice(start, min(start + step, features))
        panel = _side_by_side(columns[here], size)
        if importance is None:
            found = grid.span(panel)
        else:
            weights = importance[here]
            together = weights if len(weights) == size else weights.view(-1, size).T
            found = search_scales(panel, together, grid)
        scales += torch.split(found[0], rows)
        zeros += [None] if found[1] is None else torch.split(found[1], rows)
        codes[here] = _one_below_the_other(encode(panel, *found, grid), rows)
    return codes, scales, zeros


def _side_by_side(columns: torch.Tensor, size: int) -> torch.Tensor:
    """(groups x size, rows) -> (size, groups x rows); a view of one group."""
    if len(columns) == size:
        return columns
    return columns.view(-1, size, columns.shape[1]).transpose(0, 1).reshape(size, -1)


def _one_below_the_other(panel: torch.Tensor, rows: int) -> torch.Tensor:
    """The inverse of `_side_by_side`: (size, groups x rows) -> (groups x size, rows)."""
    if panel.shape[1] == rows:
        return panel
    return panel.view(len(panel), -1, rows).transpose(0, 1).reshape(-1, rows)


def importance_of(diagonal: torch.Tensor) -> torch.Tensor:
    """Weights of squared errors, fp32 (in_features,) > 0, from diag H (in_features,).

    A channel that is 0 in all calibration inputs keeps a small weight: other texts may use it.
    """
    mean = diagonal.mean()
    return torch.where(mean > 0, diagonal.clamp(min=UNSEEN * mean), 1.0)


def encode(
    panel: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, grid: Rounding
) -> torch.Tensor:
    """uint8 codes of a panel, fp32 (group_size, n); scales and zeros: fp32 (n,)."""
    return grid.codes(steps_of(panel, scales, zeros, grid), zeros)


def assemble(
    codes: torch.Tensor,
    scales: list[torch.Tensor],
    zeros: list[torch.Tensor | None],
    scheme: Scheme,
    grid: Rounding,
) -> QTensor:
    """A QTensor from codes uint8 (in_features, rows) and scales and zeros fp32 (rows,) per group.

    Scales must already be storable in `grid`.
    """
    known = [z for z in zeros if z is not None]
    return QTensor(
        codes.t().contiguous(),
        grid.stored(torch.stack(scales, 1)),
        torch.stack(known, 1).to(torch.uint8) if known else None,
        scheme,
        global_scale=grid.global_scale,
    )
