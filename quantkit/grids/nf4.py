"""NF4: 16 quantiles of a normal distribution, in blocks of the flattened weight (bitsandbytes)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quantkit.core.grid import Grid
from quantkit.core.scheme import GROUP_SIZES, Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor
    from quantkit.grid.rounding import Rounding


def rounding(_: Scheme, dtype: torch.dtype, _weights: Sequence[torch.Tensor]) -> Rounding:
    """As `Grid.rounding`, for groups of inputs; method nf4 has blocks, which run on over rows."""
    from quantkit.grid.floating import FloatGrid
    from quantkit.grid.normal4 import NF4
    from quantkit.grid.scale_stores import PlainScales
    from quantkit.grid.table import Table

    return FloatGrid(Table(tuple(NF4.tolist())), PlainScales(dtype, refits=1))


def dequantize(qtensor: QTensor) -> torch.Tensor:
    """As `Grid.dequantize`."""
    import torch

    from quantkit.grid.normal4 import NF4

    codes, scales = qtensor.codes, qtensor.scales
    size = qtensor.scheme.group_size or codes.numel()
    values = NF4.to(codes.device)[codes.int()].flatten()
    blocks = torch.nn.functional.pad(values, (0, -values.numel() % size)).view(-1, size)
    return blocks.mul_(scales[:, None]).flatten()[: values.numel()].view(codes.shape)


def label(scheme: Scheme) -> str:
    """As `Grid.label`."""
    return f"NF4 {scheme.spread}" + (" double" if scheme.double_quant else "")


def scale_dtype(_: Scheme, _model: str) -> str:
    """As `Grid.scale_dtype`."""
    return "float32"


def contradiction(scheme: Scheme) -> str | None:
    """As `Grid.contradiction`."""
    if scheme.activation:
        return "NF4 does not support 8-bit activations; try: --method smoothquant"
    if scheme.rows != 1:
        return "NF4 has blocks of the flattened weight; try: --group-size 64"
    return None if scheme.symmetric else "NF4 has no zero point; try: --symmetric"


GRID = Grid(
    name="nf4",
    summary="16 quantiles of a normal distribution, as bitsandbytes has them",
    bits=(4,),
    label=label,
    scale_dtype=scale_dtype,
    rounding=rounding,
    dequantize=dequantize,
    method="nf4",
    flattened=True,
    group_sizes=GROUP_SIZES,
    contradiction=contradiction,
    examples=(
        Scheme("nf4", 4, 64),
        Scheme("nf4", 4, 64, double_quant=True),
        Scheme("nf4", 4, 128),
    ),
)
