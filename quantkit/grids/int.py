"""Integers of 2 to 8 bits: w = scale * (code - zero)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quantkit.core.grid import Grid
from quantkit.core.scheme import GROUP_SIZES, INTEGERS, Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor
    from quantkit.grid.rounding import Rounding


def rounding(scheme: Scheme, dtype: torch.dtype, _: Sequence[torch.Tensor]) -> Rounding:
    """As `Grid.rounding`."""
    from quantkit.grid.affine import AffineGrid

    return AffineGrid(scheme.bits, scheme.symmetric, dtype)


def dequantize(qtensor: QTensor) -> torch.Tensor:
    """As `Grid.dequantize`."""
    codes, scheme = qtensor.codes, qtensor.scheme
    zeros = qtensor.zeros
    shift = float(1 << (scheme.bits - 1)) if zeros is None else zeros[..., None]
    grouped = codes.view(len(codes), qtensor.scales.shape[1], -1).float()
    return grouped.sub_(shift).mul_(qtensor.scales.float()[..., None]).view(codes.shape)


def label(scheme: Scheme) -> str:
    """As `Grid.label`."""
    width = f"W{scheme.bits}" + ("A8" if scheme.activation else "")
    return f"{width} {scheme.spread} {'sym' if scheme.symmetric else 'asym'}"


def scale_dtype(scheme: Scheme, model: str) -> str:
    """As `Grid.scale_dtype`: that of a model of 16 bits.

    Engines cast weight-only scales to the serving dtype, and keep those of W8A8 in fp32.
    """
    if scheme.activation is not None:
        return "float32"
    return model if model in ("bfloat16", "float16") else "float16"


def contradiction(scheme: Scheme) -> str | None:
    """As `Grid.contradiction`."""
    if scheme.rows != 1:
        return "integers have scales of rows or parts of rows; try: --group-size channel"
    if scheme.activation not in (None, "int8-token"):
        return f"integers do not go with {scheme.activation} activations; try: --method smoothquant"
    return None


GRID = Grid(
    name="int",
    summary="integers, with or without zero points",
    bits=tuple(bits for _, bits in INTEGERS),
    label=label,
    scale_dtype=scale_dtype,
    rounding=rounding,
    dequantize=dequantize,
    zero_points=True,
    buffers=1,
    group_sizes=GROUP_SIZES,
    contradiction=contradiction,
    examples=(
        Scheme("int", 4, 64),
        Scheme("int", 4, 128, symmetric=False),
        Scheme("int", 8, None, activation="int8-token"),
    ),
)
