"""The contract of a quantization method: tensors in, QTensor out, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quantkit.core.scheme import GridName, Scheme

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
class GroupShape:
    """Linears that read one input, as a method is given them: `outputs` of each, and `inputs`.

    `sample`: tokens that the statistics keep as they were, at most; 0 where there are none.
    `mixes_tokens`: other positions see these linears (keys and values). `widened`: the weights are
    not fp32 and become so in a copy.
    """

    outputs: tuple[int, ...]
    inputs: int
    scheme: Scheme
    sample: int = 0
    mixes_tokens: bool = False
    widened: bool = False

    @property
    def weights(self) -> int:
        """Number of weights, all linears together."""
        return sum(self.outputs) * self.inputs

    @property
    def largest(self) -> int:
        """Number of weights of the largest linear."""
        return max(self.outputs) * self.inputs

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return min(self.scheme.group_size or self.inputs, self.inputs)


@dataclass(frozen=True)
class Method:
    """One quantization method; planning reads it, so its file loads torch inside functions only.

    quantize(weights, stats, scheme, scale_dtype, options): `weights` are the fp32
        (out_features, in_features) matrices of linears that read the same input, solved together;
        one Solved each, in order.
        Scales are stored in `scale_dtype`, a torch dtype.
    rescale(weights, stats, scheme, options): per-input-channel scales s (in_features,) fp32, to be
        divided out of the producer of the input and multiplied into the weights' columns, or None
        where no rescaling helps. Only methods that fold scales have it.
    options: the frozen dataclass of the method's options, all with defaults; its docstring says
        what each does, and `quantkit recipes schema` shows it.
    grids: the (grid, bits) pairs it can make; the first is what `--method` alone makes where no
        recipe is called as the method.
    needs_inputs: whether calibration must run.
    workspace(group): most bytes that `quantize` and `rescale` keep alive at once while they solve
        a group, beside the weights as they are stored and the statistics.
    """

    name: str
    summary: str
    paper: str
    grids: tuple[tuple[GridName, int], ...]
    needs_inputs: bool
    options: type[Any]
    workspace: Callable[[GroupShape], int]
    quantize: Callable[
        [list[torch.Tensor], InputStats | None, Scheme, torch.dtype, Any], list[Solved]
    ]
    rescale: Callable[[list[torch.Tensor], InputStats, Scheme, Any], torch.Tensor | None] | None = (
        None
    )
