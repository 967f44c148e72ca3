"""GPTQ: round column by column, letting later columns absorb the errors of earlier ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from quantkit.core.errors import QuantkitError
from quantkit.core.method import GroupShape, Method, Solved
from quantkit.core.scheme import Scheme
from quantkit.grid.kernel import DEVICES, SIZES
from quantkit.grid.threads import one_thread
from quantkit.grid.tiles import rows_at_once, tiles
from quantkit.grid.workspace import FP32, copies, rounding, square

if TYPE_CHECKING:
    import torch

    from quantkit.grid.ldlq import Feedback
    from quantkit.grid.qtensor import QTensor
    from quantkit.grid.rounding import Found, Rounding
    from quantkit.stats.inputs import InputStats

TRIALS = (1.0, 0.94, 1.06)  # factors of the scale of least weighted error


@dataclass(frozen=True)
class GptqOptions:
    """Every ingredient can be switched off.

    damp: added to the diagonal of H, in units of its mean.
    scale_free_damping: damp is in units of each entry of the diagonal instead.
    sink: weight of the sequences' first tokens where keys and values are made, in units of all
        tokens together; every query attends to them (attention sink, arXiv 2309.17453).
    signed: symmetric scales may be negative, which puts the largest weight on the outermost code.
    search: a group's scale spans it ("minmax"), has the least error weighted by the pivots
        ("weighted"), or is the best of some near that one in trial solves of the group ("trial").
    order: channels with large inputs first, groups kept together ("group"), or whatever their group
        ("full"), where scales are chosen before by least weighted error; or unchanged.
    sweeps: how often each group is solved again afterwards, given the errors of all others.
    keep_better_rows: rows on which rounding to nearest loses less keep that result.
    """

    damp: float = 0.05
    scale_free_damping: bool = False
    sink: float = 1.0
    signed: bool = True
    search: Literal["trial", "weighted", "minmax"] = "trial"
    order: Literal["group", "full", "natural"] = "group"
    sweeps: int = 0
    keep_better_rows: bool = True


@dataclass(frozen=True)
class _Task:
    """What all rows of a group have in common.

    `hessian` is the one that sweeps descend on, with the sinks in it; without sweeps that of the
    statistics. `feedback` is None where there is no factor: rows are rounded to nearest then.
    """

    stats: InputStats
    hessian: torch.Tensor
    feedback: Feedback | None
    scheme: Scheme
    grid: Rounding
    options: GptqOptions

    @property
    def importance(self) -> torch.Tensor | None:
        """Weights of squared errors where scales are chosen, fp32 (in_features,)."""
        from quantkit.grid.nearest import importance_of

        return importance_of(self.stats.diagonal) if self.options.search != "minmax" else None

    @property
    def at_once(self) -> int:
        """Rows that are solved at a time."""
        kind = self.hessian.device.type
        return rows_at_once(tiles(kind).ldlq, len(self.hessian))


@one_thread()
def quantize(
    weights: list[torch.Tensor],
    stats: InputStats | None,
    scheme: Scheme,
    grid: Rounding,
    options: GptqOptions,
) -> list[Solved]:
    """All weights, fp32 (rows, in_features), solved as one: rows share the Hessian and its factor.

    Each result has the shape of its weight. Neither weights nor statistics are modified. Rows are
    taken so many at a time, counted over all weights, whatever comes after them.

    Raises:
        QuantkitError: there are no statistics.
    """
    if stats is None:
        raise QuantkitError("gptq needs calibration inputs", hint="use rtn, which needs none")
    import torch

    from quantkit.grid.rows import joined, rows_of

    grid = grid.signs(signed=options.signed)
    size = scheme.group_size or weights[0].shape[1]
    hessian = stats.attended(options.sink)
    feedback, notes = _feedback(hessian, size, options)
    if not options.sweeps:
        hessian = stats.hessian  # gives back the memory of another one
    task = _Task(stats, hessian, feedback, scheme, grid, options)
    if scheme.rows != 1:
        return [replace(_blocks(weight, task), notes=notes) for weight in weights]
    parts = torch.split(torch.cat(weights), task.at_once)
    together = joined([_rows(part, task) for part in parts])
    ends = list(accumulate(len(weight) for weight in weights))
    return [
        replace(rows_of(together, slice(start, end)), notes=notes)
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def _rows(rows: torch.Tensor, task: _Task, known: Found | None = None) -> Solved:
    """Some rows, fp32 (rows, in_features), solved; rounded to nearest where there is no factor.

    `known` scales and zeros, fp32 (groups, rows), are given where they are not to be chosen.
    """
    from quantkit.grid.blocks import rounded_to
    from quantkit.grid.nearest import importance_of, nearest
    from quantkit.grid.quadratic import losses_of

    stats, scheme, grid = task.stats, task.scheme, task.grid

    def rounded_off() -> QTensor:
        if known is not None:
            return rounded_to(rows, known[0].T, scheme, grid)
        return nearest(rows, importance_of(stats.diagonal), scheme, grid)

    feedback = task.feedback
    qtensor = _solve(rows, feedback, task, known) if feedback else rounded_off()
    losses = losses_of(qtensor.dequantize().sub_(rows), rows, stats.hessian)
    if feedback and task.options.keep_better_rows:
        rounded = rounded_off()
        qtensor, losses[0] = _better_rows(qtensor, losses[0], rounded, rows, stats.hessian)
    return Solved(qtensor, losses)


def _blocks(weight: torch.Tensor, task: _Task) -> Solved:
    """A weight, fp32 (rows, in_features), whose rows share scales: these are chosen beforehand."""
    import torch

    from quantkit.grid.blocks import block_scales, by_block, by_row
    from quantkit.grid.rows import joined

    scheme, size = task.scheme, task.at_once
    scales = by_row(block_scales(weight, task.importance, scheme, task.grid), len(weight), scheme)
    alone = replace(task, scheme=replace(scheme, rows=1))
    parts = zip(torch.split(weight, size), torch.split(scales, size), strict=True)
    solved = joined([_rows(rows, alone, (known.T, None)) for rows, known in parts])
    return replace(solved, qtensor=by_block(solved.qtensor, scheme))


def _feedback(
    hessian: torch.Tensor, size: int, options: GptqOptions
) -> tuple[Feedback | None, tuple[str, ...]]:
    """The factor of the damped Hessian with its order (None if none exists), and the fallbacks."""
    from quantkit.grid.ldlq import factor

    order = _order(hessian.diagonal(), size, options)
    ordered = hessian.index_select(0, order).index_select(1, order)
    diagonal = ordered.diagonal().clone()
    unit = diagonal if options.scale_free_damping else diagonal.mean()
    notes: tuple[str, ...] = ()
    for damp, dtype in _ladder(options.damp):
        ordered.diagonal().copy_(diagonal + damp * unit)
        feedback = factor(ordered.to(dtype), order)
        if feedback is not None:
            return feedback, notes
        notes = (*notes, f"no Cholesky factor with damp {damp:g} in {str(dtype)[6:]}")
    return None, (*notes, "rounded to nearest")


def _ladder(damp: float) -> Iterator[tuple[float, torch.dtype]]:
    """Damping and precision to try until the Hessian is positive definite: precision first."""
    import torch

    yield damp, torch.float32
    yield damp, torch.float64
    for factor_ in (10, 100):
        yield factor_ * max(damp, 1e-3), torch.float64


def _order(diagonal: torch.Tensor, size: int, options: GptqOptions) -> torch.Tensor:
    """Channel at each position, int64 (in_features,); the last is rounded first.

    `diagonal` is that of the Hessian, fp32 (in_features,). Groups are sorted by their mean, and
    channels within each group, so that codes written back in their natural order have one scale
    per run of `size` channels (group-aware reordering, GAR, arXiv 2505.14638). Where the last group
    is cut, channels stay where they are. With scales that are known, all are sorted.
    """
    import torch

    if options.order == "full":
        return diagonal.argsort(stable=True)
    if diagonal.numel() % size:
        return torch.arange(diagonal.numel(), device=diagonal.device)
    if options.order == "natural":
        return torch.arange(diagonal.numel(), device=diagonal.device).flip(0)
    grouped = diagonal.view(-1, size)
    groups = grouped.mean(1).argsort(stable=True)
    within = grouped.argsort(stable=True, dim=1)[groups]
    return (groups[:, None] * size + within).flatten()


def _solve(stacked: torch.Tensor, feedback: Feedback, task: _Task, known: Found | None) -> QTensor:
    """`stacked`, fp32 (rows, in_features), rounded with feedback, in the natural channel order.

    `known` as in `_rows`.
    """
    import torch

    from quantkit.grid.descent import Columns, descend
    from quantkit.grid.ldlq import ldlq, ldlq_known
    from quantkit.grid.nearest import assemble
    from quantkit.grid.search import Near

    grid, options, order = task.grid, task.options, feedback.order
    size = task.scheme.group_size or stacked.shape[1]
    columns = stacked.T[order]
    near = Near(grid, options.search != "minmax", TRIALS if options.search == "trial" else (1.0,))
    chosen = known
    if known is None and options.order == "full":
        chosen = _chosen(stacked, task)
    if chosen is None:
        codes, scales, zeros = ldlq(columns, feedback, grid, size, near)
        back = (order[::size] // size).argsort()
        scales, zeros = scales[back], None if zeros is None else zeros[back]
    else:
        scales, zeros = chosen
        codes = ldlq_known(columns, feedback, grid, (order // size).tolist(), scales, zeros)
    del columns
    natural = torch.empty_like(codes)
    natural[order] = codes

    def qtensor() -> QTensor:
        each = [None] if zeros is None else list(zeros)
        return assemble(natural, list(scales), each, task.scheme, grid)

    even = len(scales) > 1 and not stacked.shape[1] % size  # one group alone is solved as it is
    if options.sweeps and even and known is None:
        diagonal = torch.empty_like(feedback.diagonal)
        diagonal[order] = feedback.diagonal
        values = qtensor().dequantize()
        step = rows_at_once(tiles(values.device.type).dealt, values.shape[1])
        for start in range(0, len(values), step):
            rows = slice(start, start + step)
            own = None if zeros is None else zeros[:, rows]
            part = Columns(values[rows].T.contiguous(), natural[:, rows], scales[:, rows], own)
            weights = stacked[rows].T.contiguous()
            for _ in range(options.sweeps):
                descend(weights, part, task.hessian, diagonal, grid, near)
    return qtensor()


def _chosen(stacked: torch.Tensor, task: _Task) -> Found:
    """Scales and zeros, fp32 (groups, rows), of least weighted error, or those that span groups."""
    import torch

    from quantkit.grid.nearest import searched

    _, scales, zeros = searched(stacked, task.importance, task.scheme, task.grid)
    some = [zero for zero in zeros if zero is not None]
    return torch.stack(scales), torch.stack(some) if some else None


def _better_rows(
    solved: QTensor,
    losses: torch.Tensor,
    rounded: QTensor,
    stacked: torch.Tensor,
    hessian: torch.Tensor,
) -> tuple[QTensor, torch.Tensor]:
    """Per row the result of less loss, and the losses, fp32 (rows,); rows are independent.

    `stacked` is fp32 (rows, in_features), `hessian` fp32 (in_features, in_features).
    """
    import torch

    from quantkit.grid.quadratic import row_losses

    others = row_losses(rounded.dequantize().sub_(stacked), hessian)
    better = (losses <= others)[:, None]
    zeros = None
    if solved.zeros is not None and rounded.zeros is not None:
        zeros = torch.where(better, solved.zeros, rounded.zeros)
    mixed = replace(
        solved,
        codes=torch.where(better, solved.codes, rounded.codes),
        scales=torch.where(better, solved.scales, rounded.scales),
        zeros=zeros,
    )
    return mixed, torch.minimum(losses, others)


def workspace(group: GroupShape) -> int:
    """Bytes: stacked linears; the Hessian is ordered, factored, then LDLQ, then nearest codes."""
    weights, hessian = group.weights, square(group)
    factoring = (3 if group.mixes_tokens else 2) * hessian
    solving = hessian + (_rounding_here if group.device == "cpu" else _rounding_there)(group)
    if group.mixes_tokens and group.scheme.kind.name != Scheme.grid:
        solving += hessian  # that with the sinks, for the sweeps of recipes of other grids
    comparing = hessian + weights + rounding(group, weights)
    return copies(group) + FP32 * weights + max(factoring, solving, comparing)


def _rounding_here(group: GroupShape) -> int:
    """Bytes of LDLQ on a CPU, at most: columns and codes as of all rows, and a chunk's trials."""
    width = min(sum(group.outputs), rows_at_once(tiles(group.device).ldlq, group.inputs))
    chunk = width * (5 * group.inputs + FP32 * group.group * (4 * len(TRIALS) + 2))
    return 6 * group.weights + chunk


def _rounding_there(group: GroupShape) -> int:
    """Bytes of LDLQ on a GPU: all rows at once, so that targets and codes are as large as columns.

    Codes are joined at the end, when a group's trials are gone. Triton's programs have none, and
    want the couplings row by row, which a Cholesky factorization does not give.
    """
    rows, panel = sum(group.outputs), FP32 * group.group * sum(group.outputs)
    trials = (4 * len(TRIALS) + 2) * panel
    if group.device in DEVICES and group.group in SIZES:
        trials = max(trials, square(group) + 3 * panel + 3 * FP32 * group.group * group.inputs)
    scales = FP32 * rows * -(-group.inputs // group.group) * (1 if group.scheme.symmetric else 2)
    return 9 * group.weights + 2 * scales + max(group.weights, trials)


METHOD = Method(
    name="gptq",
    summary="column by column with error feedback; the best at 3 and 4 bits",
    paper="GPTQ, arXiv 2210.17323; as LDLQ, arXiv 2307.13304; order by GAR, arXiv 2505.14638",
    grids="any",
    needs_inputs=True,
    options=GptqOptions,
    workspace=workspace,
    quantize=quantize,
)
