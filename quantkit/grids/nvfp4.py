"""NVFP4: e2m1 floats in groups of 16, e4m3 scales, and one fp32 scale of all of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quantkit.core.grid import Grid, small_group_fault
from quantkit.core.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor
    from quantkit.grid.rounding import Rounding

GROUP = 16


def rounding(_: Scheme, _dtype: torch.dtype, weights: Sequence[torch.Tensor]) -> Rounding:
    """As `Grid.rounding`: engines use one scale of all scales for linears that they fuse."""
    from quantkit.grid.floating import FloatGrid
    from quantkit.grid.minifloat import FOUR
    from quantkit.grid.scale_stores import NestedScales

    return FloatGrid(FOUR, NestedScales.of(weights, FOUR.largest))


def dequantize(qtensor: QTensor) -> torch.Tensor:
    """As `Grid.dequantize`."""
    from quantkit.grid.blocks import dequantized
    from quantkit.grid.minifloat import FOUR

    return dequantized(qtensor, FOUR)


def label(scheme: Scheme) -> str:
    """As `Grid.label`."""
    return "NVFP4" if scheme.activation is None else "NVFP4 W4A4"


def scale_dtype(_: Scheme, _model: str) -> str:
    """As `Grid.scale_dtype`."""
    return "float8_e4m3fn"


def contradiction(scheme: Scheme) -> str | None:
    """As `Grid.contradiction`."""
    return small_group_fault(scheme, "NVFP4", GROUP, "nvfp4")


GRID = Grid(
    name="nvfp4",
    summary="e2m1 floats in groups of 16, scales of 8 bits under one of the tensor",
    bits=(4,),
    label=label,
    scale_dtype=scale_dtype,
    rounding=rounding,
    dequantize=dequantize,
    group_sizes=(GROUP,),
    contradiction=contradiction,
    examples=(Scheme("nvfp4", 4, GROUP), Scheme("nvfp4", 4, GROUP, activation="nvfp4")),
)
