"""The contract of a quantization method: tensors in, QTensor out, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from quantkit.core import registry
from quantkit.core.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor
    from quantkit.grid.rounding import Rounding
    from quantkit.stats.inputs import InputStats


@dataclass(frozen=True)
class Solved:
    """One quantized linear, or some rows of one.

    `losses` is fp32 (2, rows): of each row the squared error e H e^T of its output over the
    calibration tokens X, with H = X^T X, and the squared output w H w^T; None without statistics.
    Those of a finished block are summed up, fp64 (2, 1). `notes` name every fallback that was used.
    """

    qtensor: QTensor
    losses: torch.Tensor | None
    notes: tuple[str, ...] = ()

    @cached_property
    def loss(self) -> float | None:
        """tr(E H E^T) / tr(W H W^T), the relative squared error of the output.

        GPTQ, arXiv 2210.17323, equation 1; 0 if W H W^T is 0, None without statistics. Waits for
        the device.
        """
        if self.losses is None:
            return None
        lost, whole = self.losses.double().sum(1).cpu().tolist()
        return lost / whole if whole > 0 else 0.0


@dataclass(frozen=True)
class GroupShape:
    """The shapes of linears with one input, solved together: `outputs` of each, and `inputs`.

    `sample`: how many tokens the statistics keep unreduced, at most; 0 without statistics.
    `mixes_tokens`: attention mixes the outputs over positions (keys and values). `widened`: the
    weights are not fp32, and a copy of them is. `device`: its kind, as torch names it.
    """

    outputs: tuple[int, ...]
    inputs: int
    scheme: Scheme
    sample: int = 0
    mixes_tokens: bool = False
    widened: bool = False
    device: str = "cpu"

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
    """One quantization method; planning reads it, so its file imports torch inside functions only.

    quantize(weights, stats, scheme, grid, options): one Solved for each weight, in order. `weights`
        are fp32 (out_features, in_features), of linears that read the same input and are solved
        together, or some of their rows. `grid` is the scheme's, for all of their rows.
    rescale(weights, stats, scheme, grid, options): scales s (in_features,) fp32, which divide the
        input's producer and multiply the weights' columns; None where rescaling does not help. Only
        methods that fold scales have it.
    options: the frozen dataclass of the method's options, all with defaults; its docstring
        describes them, and `quantkit recipes schema` shows it.
    grids: the supported (grid, bits) pairs, or "any": those of all grids, but for ones with a
        method of their own. `--method` without a recipe of that name uses the first of `pairs`.
    needs_inputs: whether the method needs calibration.
    by_rows: whether the rows of a weight are quantized independently of each other.
    workspace(group): peak bytes that `quantize` and `rescale` allocate for a group, in addition to
        the stored weights and the statistics.
    """

    name: str
    summary: str
    paper: str
    grids: tuple[tuple[str, int], ...] | Literal["any"]
    needs_inputs: bool
    options: type[Any]
    workspace: Callable[[GroupShape], int]
    quantize: Callable[[list[torch.Tensor], InputStats | None, Scheme, Rounding, Any], list[Solved]]
    rescale: (
        Callable[[list[torch.Tensor], InputStats, Scheme, Rounding, Any], torch.Tensor | None]
        | None
    ) = None
    by_rows: bool = True

    @property
    def pairs(self) -> tuple[tuple[str, int], ...]:
        """The (grid, bits) pairs that it supports, the most usual one first."""
        return _shared_pairs() if self.grids == "any" else self.grids


def _shared_pairs() -> tuple[tuple[str, int], ...]:
    """Those of all grids without a method of their own, integers first."""
    names = sorted(registry.names("grids"), key=lambda name: name != Scheme.grid)
    grids = [registry.load("grids", name, "GRID") for name in names]
    return tuple((grid.name, bits) for grid in grids if not grid.method for bits in grid.bits)
