"""The contract of a grid: which numbers weights are rounded to, and how their scales are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantkit.core.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor
    from quantkit.grid.rounding import Rounding


@dataclass(frozen=True)
class Grid:
    """One grid; planning reads it, so its file imports torch inside functions only.

    bits: the widths it has, the most usual one first.
    label(scheme): short name of a scheme for tables: `W4 g64 sym`.
    rounding(scheme, scale_dtype, weights): the grid for `weights`, fp32 (rows, in_features), of
        linears that engines fuse: a scale of all scales spans all of them.
    contradiction(scheme): a sentence that states which fields contradict each other, or None.
    examples: schemes that it has, which tests run on; they differ in all that formats may treat.
    stored_as: the grid whose codes and scales, of as many bits, hold its numbers exactly: formats
        and engines know that one alone. It states the next two then; otherwise this grid does.
    scale_dtype(scheme, model): the dtype in which scales are stored, for a model of a dtype; both
        as torch names them. Those of 16 and 32 bits are floats, which may be divided.
    dequantize(qtensor): its weight, fp32 (out_features, in_features), a new tensor.
    method: the method that alone solves it; empty where all do that take any grid.
    zero_points: whether it has them, where a scheme is not symmetric.
    flattened: whether groups run over the flattened weight, so that they may cross rows.
    buffers: how often a panel of fp32 is held while it becomes codes (`grid.workspace`).
    group_sizes: of these, the group size `auto` takes the largest that divides every width; with
        none it is one scale per channel.
    """

    name: str
    summary: str
    bits: tuple[int, ...]
    label: Callable[[Scheme], str]
    rounding: Callable[[Scheme, torch.dtype, Sequence[torch.Tensor]], Rounding]
    contradiction: Callable[[Scheme], str | None]
    examples: tuple[Scheme, ...]
    stored_as: str = ""
    scale_dtype: Callable[[Scheme, str], str] | None = None
    dequantize: Callable[[QTensor], torch.Tensor] | None = None
    method: str = ""
    zero_points: bool = False
    flattened: bool = False
    buffers: int = 2
    group_sizes: tuple[int, ...] = ()


def small_group_fault(
    scheme: Scheme, name: str, group: int, activation: str | None = None
) -> str | None:
    """The contradiction of a grid without zero points that has groups of one size.

    `activation`: what activations may be quantized to.
    """
    if not scheme.symmetric:
        return f"{name} has no zero point; try: --symmetric"
    if (scheme.group_size, scheme.rows) != (group, 1):
        return f"{name} has groups of {group}; try: --group-size {group}"
    if scheme.activation in (None, activation):
        return None
    if activation is None:
        return f"{name} goes with activations in 16 bits; try: --recipe nvfp4"
    return f"{name} does not go with {scheme.activation} activations; try: --recipe nvfp4"


def rounding_of(
    scheme: Scheme, scale_dtype: torch.dtype, weights: Sequence[torch.Tensor]
) -> Rounding:
    """The grid of a scheme for `weights`; as `Grid.rounding`."""
    grid: Grid = scheme.kind
    return grid.rounding(scheme, scale_dtype, weights)
