"""The rows of linears that are solved together: how many at a time, cut apart and joined again.

Rows do not depend on each other once the statistics of their inputs are known. They are counted
over all linears of a group, one below the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from quantkit.core.method import Solved
from quantkit.core.ranks import Ranks
from quantkit.grid.exchange import exchange
from quantkit.grid.tiles import rows_at_once, tiles


class Piece(NamedTuple):
    """Rows of one of several weights."""

    weight: int
    rows: slice


def cut(counts: Sequence[int], size: int) -> list[list[Piece]]:
    """Units of `size` rows (the last may have fewer) of weights that have so many rows each."""
    units: list[list[Piece]] = []
    room = 0
    for weight, count in enumerate(counts):
        start = 0
        while start < count:
            if not room:
                units.append([])
                room = size
            taken = min(room, count - start)
            units[-1].append(Piece(weight, slice(start, start + taken)))
            start, room = start + taken, room - taken
    return units


def dealt(
    quantize: Callable[[list[torch.Tensor]], list[Solved]],
    weights: list[torch.Tensor],
    ranks: Ranks,
) -> list[Solved]:
    """`quantize` of weights, fp32 (rows, in_features), whose rows are dealt out to the ranks.

    They are cut in the same places for any number of ranks, so that products have the same shapes;
    a GPU alone takes all at once.
    """
    kind = weights[0].device.type
    if ranks.alone and kind != "cpu":
        return quantize(weights)
    at_once = rows_at_once(tiles(kind).dealt, weights[0].shape[1])
    units = cut([len(weight) for weight in weights], at_once)
    owners = ranks.owners([sum(len(weights[w][rows]) for w, rows in unit) for unit in units])
    pairs = list(zip(units, owners, strict=True))
    own = [piece for unit, owner in pairs if owner == ranks.rank for piece in unit]
    solved = quantize([weights[w][rows] for w, rows in own]) if own else []
    found = [iter(each) for each in exchange(ranks, solved)]
    parts: list[list[Solved]] = [[] for _ in weights]
    for unit, owner in pairs:
        for piece in unit:
            parts[piece.weight].append(next(found[owner]))
    return [joined(each) for each in parts]


def joined(parts: Sequence[Solved]) -> Solved:
    """Rows one below the other; notes are those of the first."""
    if len(parts) == 1:
        return parts[0]
    tensors = [part.qtensor for part in parts]
    zeros = [each.zeros for each in tensors if each.zeros is not None]
    losses = [part.losses for part in parts if part.losses is not None]
    qtensor = replace(
        tensors[0],
        codes=torch.cat([each.codes for each in tensors]),
        scales=torch.cat([each.scales for each in tensors]),
        zeros=torch.cat(zeros) if zeros else None,
    )
    return replace(parts[0], qtensor=qtensor, losses=torch.cat(losses, 1) if losses else None)


def rows_of(solved: Solved, rows: slice) -> Solved:
    """Some rows as tensors of their own."""
    whole = solved.qtensor
    qtensor = replace(
        whole,
        codes=whole.codes[rows].clone(),
        scales=whole.scales[rows].clone(),
        zeros=None if whole.zeros is None else whole.zeros[rows].clone(),
    )
    losses = None if solved.losses is None else solved.losses[:, rows].clone()
    return replace(solved, qtensor=qtensor, losses=losses)
