"""MXFP8: e4m3 floats in groups of 32 with powers of two as scales (OCP Microscaling 1.0)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quantkit.core.grid import Grid, small_group_fault
from quantkit.core.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor
    from quantkit.grid.rounding import Rounding

GROUP = 32


def rounding(_: Scheme, _dtype: torch.dtype, _weights: Sequence[torch.Tensor]) -> Rounding:
    """As `Grid.rounding`."""
    from quantkit.grid.floating import FloatGrid
    from quantkit.grid.minifloat import EIGHT
    from quantkit.grid.scale_stores import PowerScales

    return FloatGrid(EIGHT, PowerScales(trials=False))


def dequantize(qtensor: QTensor) -> torch.Tensor:
    """As `Grid.dequantize`."""
    from quantkit.grid.blocks import dequantized
    from quantkit.grid.minifloat import EIGHT

    return dequantized(qtensor, EIGHT)


def label(_: Scheme) -> str:
    """As `Grid.label`."""
    return "MXFP8"


def scale_dtype(_: Scheme, _model: str) -> str:
    """As `Grid.scale_dtype`."""
    return "uint8"


def contradiction(scheme: Scheme) -> str | None:
    """As `Grid.contradiction`."""
    return small_group_fault(scheme, "MXFP8", GROUP)


GRID = Grid(
    name="mxfp8",
    summary="e4m3 floats in groups of 32, scales are powers of two",
    bits=(8,),
    label=label,
    scale_dtype=scale_dtype,
    rounding=rounding,
    dequantize=dequantize,
    group_sizes=(GROUP,),
    contradiction=contradiction,
    examples=(Scheme("mxfp8", 8, GROUP),),
)
