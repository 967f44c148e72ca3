"""NF4: blocks of the flattened weight on 16 quantiles of a normal distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quantkit.core.method import GroupShape, Method, Solved
from quantkit.core.scheme import Scheme
from quantkit.grid.threads import one_thread
from quantkit.grid.tiles import tiles
from quantkit.grid.workspace import FP32, copies, scaling, searching

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor
    from quantkit.grid.rounding import Rounding
    from quantkit.stats.inputs import InputStats

FRACTIONS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)  # of a block's absmax
REFITS = 2
PLACES = 4096  # intervals of [-1, 1] in the table of nearest values
TINY = 1e-38  # bitsandbytes' least scale


@dataclass(frozen=True)
class Nf4Options:
    """search: scales of least error, weighted by the Hessian's diagonal where inputs are known.

    Without it, codes and scales, nested ones too, equal those of bitsandbytes bit for bit.
    """

    search: bool = True


@one_thread()
def quantize(
    weights: list[torch.Tensor],
    stats: InputStats | None,
    scheme: Scheme,
    grid: Rounding | None,  # noqa: ARG001 - blocks run on from row to row
    options: Nf4Options,
) -> list[Solved]:
    """Each weight, fp32 (rows, in_features), rounded by itself; none is modified."""
    from quantkit.grid.nearest import importance_of
    from quantkit.grid.quadratic import losses_of

    solved = []
    for weight in weights:
        importance = importance_of(stats.diagonal) if stats else weight.new_ones(weight.shape[1])
        qtensor = _rounded(weight, importance if options.search else None, scheme)
        losses = None
        if stats:
            losses = losses_of(qtensor.dequantize().sub_(weight), weight, stats.hessian)
        solved.append(Solved(qtensor, losses))
    return solved


def _rounded(weight: torch.Tensor, importance: torch.Tensor | None, scheme: Scheme) -> QTensor:
    """One weight, fp32 (rows, in_features), rounded; the last of its blocks may be short.

    `importance` is fp32 (in_features,); None takes absmax scales as bitsandbytes does (blockwise
    k-bit quantization: QLoRA, arXiv 2305.14314, sections 2 and 3).
    """
    import torch

    from quantkit.grid.dynamic8 import nested_of, nested_scales
    from quantkit.grid.normal4 import NF4
    from quantkit.grid.qtensor import QTensor

    size = scheme.group_size or weight.numel()
    short = -weight.numel() % size
    blocks = torch.nn.functional.pad(weight.flatten(), (0, short)).view(-1, size)
    scales = blocks.abs().amax(1)
    if short:
        scales[-1:].clamp_(min=TINY)
    if importance is not None:
        scales = _searched(blocks, scales, importance)
    nested = nested_of(scales) if scheme.double_quant else None
    stored = scales if nested is None else nested_scales(nested)
    if importance is not None:  # a block of zeros has scale 0
        scaled = blocks * torch.where(stored.abs() < TINY, 0, 1 / stored)[:, None]
    else:  # bitsandbytes computes codes with the scale before nesting rounds it
        scaled = blocks * (1 / scales.clamp(min=TINY))[:, None]
        if short:
            scaled[-1] = blocks[-1] / scales[-1]
    table = NF4.to(weight.device)
    codes = torch.bucketize(scaled, (table[1:] + table[:-1]) / 2, out_int32=True)
    codes = codes.flatten()[: weight.numel()].view(weight.shape).to(torch.uint8)
    return QTensor(codes, stored, None, scheme, nested)


def _searched(blocks: torch.Tensor, absmax: torch.Tensor, importance: torch.Tensor) -> torch.Tensor:
    """Scales, fp32 (blocks,), of least weighted error for `blocks`, fp32 (blocks, size).

    `absmax` is fp32 (blocks,), `importance` fp32 (in_features,), repeated for each row.
    """
    import torch

    size = blocks.shape[1]
    step = max(1, tiles(blocks.device.type).nf4 // size)
    found = []
    for start in range(0, len(blocks), step):
        part = blocks[start : start + step]
        places = torch.arange(start * size, start * size + part.numel(), device=blocks.device)
        weights = importance[places % importance.numel()].view_as(part)
        found.append(_Search(part, weights, absmax[start : start + step]).run())
    return torch.cat(found)


class _Search:
    """The best scale so far of each block.

    blocks, weights: fp32 (n, size), values and the weights of their squared errors. absmax: fp32
    (n,). None of them is modified.
    """

    def __init__(self, blocks: torch.Tensor, weights: torch.Tensor, absmax: torch.Tensor) -> None:
        import torch

        from quantkit.grid.normal4 import NF4

        self.blocks, self.weights, self.absmax = blocks, weights, absmax
        self.scales = absmax
        self.error = torch.full_like(absmax, torch.inf)
        table = NF4.to(blocks.device)
        grid = torch.linspace(-1, 1, PLACES + 1, device=blocks.device)
        self.nearest = table[torch.bucketize(grid, (table[1:] + table[:-1]) / 2)]
        self.buffer = torch.empty_like(blocks)

    def run(self) -> torch.Tensor:
        """Try fractions of the absmax, then least-squares fits; scales, fp32 (n,)."""
        import torch

        for fraction in FRACTIONS:
            self.offer(self.absmax * fraction)
        for _ in range(REFITS):
            values = self.values(self.scales)
            weighted = values * self.weights
            # least squares for fixed codes v: s = sum(w v x) / sum(w v^2)
            power = torch.linalg.vecdot(weighted, values)
            match = torch.linalg.vecdot(weighted, self.blocks)
            self.offer(torch.where(power > 0, match / power, self.scales))
        return self.scales

    def offer(self, scales: torch.Tensor) -> None:
        """Keep these scales, fp32 (n,), for the blocks where they have less error."""
        import torch

        residual = self.values(scales).mul_(scales[:, None]).sub_(self.blocks).square_()
        error = torch.linalg.vecdot(residual, self.weights)
        better = error < self.error
        self.error = torch.where(better, error, self.error)
        self.scales = torch.where(better, scales, self.scales)

    def values(self, scales: torch.Tensor) -> torch.Tensor:
        """The nearest of the 16 NF4 values to blocks / `scales`, fp32 (n, size), for fp32 (n,).

        A table of PLACES intervals is 5 times faster than a search; values at the boundary of two
        codes may get either.
        """
        import torch

        places = torch.mul(
            self.blocks, (PLACES / 2 / scales.clamp(min=TINY * PLACES))[:, None], out=self.buffer
        )
        places.add_(PLACES / 2 + 0.5).clamp_(0, PLACES)
        return self.nearest.index_select(0, places.int().flatten()).view_as(self.blocks)


def workspace(group: GroupShape) -> int:
    """Bytes: copies in fp32 and codes; dequantizing indexes a table by int64: 16 bytes a weight."""
    search, scales = searching(group, group.largest), 0
    if group.device != "cpu":  # blocks; of a part their places, importance, and six buffers
        search = FP32 * (group.largest + 8 * min(tiles(group.device).nf4, group.largest))
        scales = scaling(group, group.weights)
    return copies(group) + group.weights + scales + max(16 * group.largest, search)


METHOD = Method(
    name="nf4",
    summary="NormalFloat for bitsandbytes; scales searched, or bit for bit its own",
    paper="QLoRA, arXiv 2305.14314, section 3",
    grids=(("nf4", 4),),
    needs_inputs=False,
    options=Nf4Options,
    workspace=workspace,
    quantize=quantize,
    by_rows=False,  # blocks run on from row to row, and nested scales know all of them
)
