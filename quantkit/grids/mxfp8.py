"""MXFP8: e4m3 floats in groups of 32 with powers of two as scales (OCP Microscaling 1.0)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quantkit.core.grid import Grid
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
    from quantkit.grid.blocks import multiplied
    from quantkit.grid.floats import scales_of
    from quantkit.grid.minifloat import EIGHT

    return multiplied(EIGHT.values(qtensor.codes), scales_of(qtensor.scales), qtensor.scheme)


def label(_: Scheme) -> str:
    """As `Grid.label`."""
    return "MXFP8"


def scale_dtype(_: Scheme, _model: str) -> str:
    """As `Grid.scale_dtype`."""
    return "uint8"


def contradiction(scheme: Scheme) -> str | None:
    """As `Grid.contradiction`."""
    if not scheme.symmetric:
        return "MXFP8 has no zero point; try: --symmetric"
    if (scheme.group_size, scheme.rows) != (GROUP, 1):
        return f"MXFP8 has groups of {GROUP}; try: --group-size {GROUP}"
    if scheme.activation:
        return "MXFP8 goes with activations in 16 bits; try: --recipe nvfp4"
    return None


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
)
