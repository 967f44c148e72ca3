"""The contract of a quantization method: tensors in, QTensor out, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantkit.core.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor
    from quantkit.stats.inputs import InputStats


@dataclass(frozen=True)
class Solved:
    """What a method made of one linear.

    `loss` is tr(E H E^T) / tr(W H W^T), the relative squared error of the linear's output over
    the calibration tokens (None without statistics); `notes` name every fallback taken.
    """

    qtensor: QTensor
    loss: float | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Method:
    """One quantization method.

    quantize(weights, stats, scheme, scale_dtype, options): `weights` are the fp32
        (out_features, in_features) matrices of linears that read the same input, solved together;
        one Solved each, in order.
        Scales are stored in `scale_dtype`, a torch dtype.
    rescale(weights, stats, scheme, options): per-input-channel scales s (in_features,) fp32, to be
        divided out of the producer of the input and multiplied into the weights' columns, or None
        where no rescaling helps. Only methods that fold scales have it.
    options: the frozen dataclass of the method's options, all with defaults.
    grids: the (grid, bits) pairs it can make. needs_inputs: whether calibration must run.
    """

    name: str
    summary: str
    paper: str
    grids: frozenset[tuple[str, int]]
    needs_inputs: bool
    options: type[Any]
    quantize: Callable[
        [list[torch.Tensor], InputStats | None, Scheme, torch.dtype, Any], list[Solved]
    ]
    rescale: Callable[[list[torch.Tensor], InputStats, Scheme, Any], torch.Tensor | None] | None = (
        None
    )
