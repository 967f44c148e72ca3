"""FP8: e4m3 floats with scales of 16 or 32 bits, for a tensor, a channel, or a block of 128x128."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quantkit.core.grid import Grid
from quantkit.core.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor
    from quantkit.grid.rounding import Rounding

BLOCK = 128
ACTIVATIONS = {(None, 1): "fp8-token", (None, None): "fp8-tensor", (BLOCK, BLOCK): "fp8-group128"}
"""What serving kernels quantize activations to, by the inputs and outputs that share a scale."""


def rounding(scheme: Scheme, dtype: torch.dtype, weights: Sequence[torch.Tensor]) -> Rounding:
    """As `Grid.rounding`."""
    from quantkit.grid.floating import FloatGrid
    from quantkit.grid.minifloat import EIGHT
    from quantkit.grid.scale_stores import PlainScales, TensorScale

    if scheme.rows is None:
        return FloatGrid(EIGHT, TensorScale.of(weights, EIGHT.largest, dtype))
    return FloatGrid(EIGHT, PlainScales(dtype))


def dequantize(qtensor: QTensor) -> torch.Tensor:
    """As `Grid.dequantize`."""
    from quantkit.grid.blocks import dequantized
    from quantkit.grid.minifloat import EIGHT

    return dequantized(qtensor, EIGHT)


def label(scheme: Scheme) -> str:
    """As `Grid.label`."""
    return f"FP8 {scheme.spread}" + (" W8A8" if scheme.activation else "")


def scale_dtype(_: Scheme, model: str) -> str:
    """As `Grid.scale_dtype`: that of the model, to which transformers casts them; vLLM to fp32."""
    return model


def contradiction(scheme: Scheme) -> str | None:
    """As `Grid.contradiction`."""
    if not scheme.symmetric:
        return "FP8 has no zero point; try: --symmetric"
    spread = scheme.group_size, scheme.rows
    if spread not in ACTIVATIONS:
        return "FP8 has scales of channels, tensors or blocks; try: --group-size channel"
    if scheme.activation not in (None, ACTIVATIONS[spread]):
        fitting = f"try: --set scheme.activation={ACTIVATIONS[spread]}"
        return f"FP8 {scheme.spread} does not go with {scheme.activation} activations; {fitting}"
    return None


GRID = Grid(
    name="fp8",
    summary="e4m3 floats; scales of a channel, a tensor or a block",
    bits=(8,),
    label=label,
    scale_dtype=scale_dtype,
    rounding=rounding,
    dequantize=dequantize,
    contradiction=contradiction,
    examples=(
        Scheme("fp8", 8, None),
        Scheme("fp8", 8, None, activation="fp8-token"),
        Scheme("fp8", 8, None, rows=None),
        Scheme("fp8", 8, None, activation="fp8-tensor", rows=None),
        Scheme("fp8", 8, BLOCK, rows=BLOCK),
        Scheme("fp8", 8, BLOCK, activation="fp8-group128", rows=BLOCK),
    ),
)
