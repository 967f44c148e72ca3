"""One group of linears: fold scales into its producer, solve it, put the result in place."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from quantkit.core import registry
from quantkit.core.facts import STORED
from quantkit.core.grid import rounding_of
from quantkit.core.method import Method, Solved
from quantkit.core.ranks import ALONE, Ranks
from quantkit.core.recipe import ExpertTokens
from quantkit.core.resources import PAUSED, Holding
from quantkit.core.scheme import KVCache, Scheme
from quantkit.core.units import size
from quantkit.grid.activation import change_of, input_scale
from quantkit.grid.kv_cache import CacheScales
from quantkit.grid.rounding import Rounding
from quantkit.grid.rows import dealt
from quantkit.model.matrices import matrix, place
from quantkit.model.opened import OpenModel
from quantkit.model.skeleton import is_transposed
from quantkit.model.structure import BlockStructure, LinearGroup, ScalePair
from quantkit.pipeline.chain import Passed
from quantkit.stats.compensation import compensated
from quantkit.stats.inputs import InputChange, InputStats


@dataclass(frozen=True)
class SolverConfig:
    """The method, its options, and the scheme of every linear that is quantized (by full name).

    `experts`: which tokens experts are calibrated on, and `compensate`, as `CalibrationSpec` states
    them. `ranks`: the processes that share the work. `holding`: how forwards reach the groups.
    `kv_cache`: what attention caches keys and values in.
    """

    method: Method
    options: Any
    schemes: Mapping[str, Scheme]
    experts: ExpertTokens = "routed"
    ranks: Ranks = ALONE
    holding: Holding = PAUSED
    compensate: bool = False
    kv_cache: KVCache | None = None


@dataclass
class BlockState:
    """A block in progress: `solved` linears by full name, and parameters `changed` by folding.

    `changed` maps checkpoint names to tensors in the dtype of their source. `expert_tokens` are
    those that were sent to each expert, by the full name of the module that holds them. `cache`:
    the scales of keys and values, by the full name of an attention. `passed_on`: what the next
    block reads, as `Chain.after` gives it. `peak_bytes`: the most memory while it was quantized.
    """

    model: OpenModel
    index: int
    block: nn.Module
    structure: BlockStructure
    solved: dict[str, Solved] = field(default_factory=dict)
    changed: dict[str, torch.Tensor] = field(default_factory=dict)
    expert_tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    cache: dict[str, CacheScales] = field(default_factory=dict)
    passed_on: Passed | None = None
    peak_bytes: int = 0

    @property
    def name(self) -> str:
        """Module path of the block."""
        return self.model.skeleton.block_name(self.index)

    def full(self, linear: str) -> str:
        """Full module name of a module of the block."""
        return f"{self.name}.{linear}"

    def scheme(self, solver: SolverConfig, group: LinearGroup) -> Scheme | None:
        """The scheme that the linears of a group share; None where they stay dense."""
        return solver.schemes.get(self.full(group.names[0]))

    def settle(self) -> None:
        """Read the losses of all linears, with one wait for the device; rows are summed up."""
        known = {
            n: s.losses.double().sum(1) for n, s in self.solved.items() if s.losses is not None
        }
        if known:
            for name, sums in zip(known, torch.stack(list(known.values())).cpu(), strict=True):
                self.solved[name] = replace(self.solved[name], losses=sums[:, None])

    def summary(self) -> str:
        """Name, mean relative loss and peak memory of the block, for people."""
        losses = [s.loss for s in self.solved.values() if s.loss is not None]
        parts = [self.name]
        parts += [f"loss {sum(losses) / len(losses):.2e}"] if losses else []
        parts += [f"peak {size(self.peak_bytes)}"] if self.peak_bytes else []
        return "  ".join(parts)

    def source(self, parameter: str) -> tuple[str, torch.Tensor]:
        """Checkpoint name and present value of a parameter, as stored, on the model's device."""
        name = self.model.stored_name(self.full(parameter))
        known = self.changed.get(name)
        if known is None:
            known = self.model.stored(self.full(parameter)).to(self.model.device)
        return name, known


@dataclass(frozen=True)
class Draft:
    """What a group's linears become, before anything has changed.

    `divided`: by about what their input's producer is divided, fp32 (in_features,); None where it
    stays as it is.
    """

    divided: torch.Tensor | None
    solved: list[Solved]


@dataclass(frozen=True)
class Groups:
    """The groups of a block in progress, and with what they are solved."""

    state: BlockState
    solver: SolverConfig

    def solve(
        self, group: LinearGroup, stats: InputStats | None = None, notes: tuple[str, ...] = ()
    ) -> InputChange | None:
        """Quantize the linears of `group` in place; returns the change of their input (None: none).

        All ranks call it with the same statistics, and share the rows. `notes` on the statistics
        become notes on the linears.
        """
        return self.put(group, self.draft(group, stats, notes, self.solver.ranks))

    def draft(
        self,
        group: LinearGroup,
        stats: InputStats | None,
        notes: tuple[str, ...] = (),
        ranks: Ranks = ALONE,
    ) -> Draft:
        """Quantize the linears of `group`; the block stays as it is.

        Without statistics (an expert that no token was sent to) they are rounded to nearest where
        the method needs some. `ranks` that have the same statistics share the rows.
        """
        state, method, options = self.state, self.solver.method, self.solver.options
        scheme, pair = self._scheme(group), self._foldable(group)
        weights = [matrix(state.block.get_submodule(name)) for name in group.names]
        divided = None
        if stats is not None and stats.drift is not None:
            weights = compensated(weights, stats)
            stats = replace(stats, drift=None)
        if stats is not None and pair is not None and method.rescale is not None:
            divided = method.rescale(weights, stats, scheme, self._grid(scheme, weights), options)
            if divided is not None:
                s = factors_of(state, pair, divided)
                weights = [weight * s for weight in weights]
                stats = rescaled(stats, s)
        if stats is None and method.needs_inputs:
            method = registry.load("methods", "rtn", "METHOD")
            options = method.options()
        grid = self._grid(scheme, weights)

        def quantize(rows: list[torch.Tensor]) -> list[Solved]:
            return method.quantize(rows, stats, scheme, grid, options)

        alone = scheme.rows == 1 and method.by_rows
        solved = dealt(quantize, weights, ranks) if alone else quantize(weights)
        absmax = None if stats is None else stats.absmax
        scale = input_scale(scheme.activation, weights[0].new_ones(1) if absmax is None else absmax)
        return Draft(divided, [_with_inputs(each, scale, notes) for each in solved])

    def put(self, group: LinearGroup, draft: Draft) -> InputChange | None:
        """Replace the linears of `group` by a draft of them; as `solve`."""
        state, pair = self.state, self._foldable(group)
        divided = None
        if draft.divided is not None and pair is not None:
            divided = fold(state, pair, draft.divided)
            if pair.kind == "linear" and group.stage:
                _renew(state, pair.producer)
                divided = None  # its inner input is computed anew, by a divided producer
        for name, result in zip(group.names, draft.solved, strict=True):
            state.solved[state.full(name)] = result
            place(state.block.get_submodule(name), result.qtensor.dequantize())
        scale = draft.solved[0].qtensor.input_scale
        return _input_change(divided, change_of(self._scheme(group).activation, scale))

    def _grid(self, scheme: Scheme, weights: list[torch.Tensor]) -> Rounding:
        dtype = getattr(torch, scheme.scale_dtype(self.state.model.dtype_name))
        return rounding_of(scheme, dtype, weights)

    def _scheme(self, group: LinearGroup) -> Scheme:
        scheme = self.state.scheme(self.solver, group)
        assert scheme is not None
        return scheme

    def _foldable(self, group: LinearGroup) -> ScalePair | None:
        """The pair that feeds `group`; None where its producer cannot be divided.

        Of linears only those that are quantized with scales of 16 or 32 bits, one a row or a part
        of it: others' scales are codes themselves, or shared by rows.
        """
        pair = self.state.structure.pair_of(group)
        if pair is None or pair.kind != "linear":
            return pair
        scheme = self.solver.schemes.get(self.state.full(pair.producer))
        if scheme is None or scheme.rows != 1 or scheme.storage.flattened:
            return None
        return pair if scheme.scale_dtype(self.state.model.dtype_name) in STORED else None


def rescaled(stats: InputStats, s: torch.Tensor) -> InputStats:
    """The statistics of x / s for fp32 `s` (in_features,); `stats` are not modified.

    The Hessian is a sum of x x^T, so that of x / s is H_ij / (s_i s_j).
    """
    outer = s[:, None] * s
    return replace(
        stats,
        hessian=stats.hessian / outer,
        firsts=stats.firsts / s,
        absmax=stats.absmax / s,
        sample=stats.sample / s,
    )


def fold(state: BlockState, pair: ScalePair, wanted: torch.Tensor) -> torch.Tensor:
    """Divide what is stored of the producer by about `wanted`, fp32 (columns,).

    Returns `factors_of` it. The module stays as it is: forwards have its output already, or
    compute it again, and divide that.
    """
    producer = state.block.get_submodule(pair.producer)
    if pair.kind == "linear":
        rows = _power_of_two(pair.rows(wanted))
        _divide_linear(state, pair.producer, rows)
    else:
        rows, weight = _divided_norm(state, pair, wanted)
        state.changed[state.model.stored_name(state.full(f"{pair.producer}.weight"))] = weight
    if getattr(producer, "bias", None) is not None:
        name, value = state.source(f"{pair.producer}.bias")
        state.changed[name] = (value.float() / rows).to(value.dtype)
    return pair.columns(rows)


def factors_of(state: BlockState, pair: ScalePair, wanted: torch.Tensor) -> torch.Tensor:
    """By what exactly the producer can be divided, near `wanted`; both fp32 (columns,).

    A norm's weight is divided and rounded to its dtype, and the factors follow from the rounding.
    With biases and quantized rows they cannot: there the factors are powers of two, which change no
    mantissa, so that an already quantized producer keeps its codes.
    """
    if pair.kind == "linear":
        return pair.columns(_power_of_two(pair.rows(wanted)))
    return pair.columns(_divided_norm(state, pair, wanted)[0])


def _power_of_two(s: torch.Tensor) -> torch.Tensor:
    return torch.exp2(torch.log2(s).round_())


def _divided_norm(
    state: BlockState, pair: ScalePair, wanted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors, fp32 (rows,), after a norm's weight was rounded to its dtype, and that weight.

    Where the weight is 0 or the ratio is not finite, it stays and the factor is 1.
    """
    offset = 1.0 if pair.kind == "norm_offset" else 0.0
    s = pair.rows(wanted)
    if getattr(state.block.get_submodule(pair.producer), "bias", None) is not None:
        s = _power_of_two(s)
    _, value = state.source(f"{pair.producer}.weight")
    acts = value.float() + offset
    new = (acts / s - offset).to(value.dtype)
    taken = acts / (new.float() + offset)  # not s: the stored weight is rounded
    good = torch.isfinite(taken) & (taken > 0)
    return torch.where(good, taken, torch.ones_like(taken)), torch.where(good, new, value)


def _divide_linear(state: BlockState, name: str, s: torch.Tensor) -> None:
    """Divide the rows of a linear by powers of two, fp32 `s` (rows,): its scales if quantized."""
    done = state.solved.get(state.full(name))
    if done is None:
        producer = state.block.get_submodule(name)
        source, value = state.source(f"{name}.weight")
        rows = s if is_transposed(producer) else s[:, None]
        state.changed[source] = (value.float() / rows).to(value.dtype)
        producer.weight.data.copy_(state.changed[source])  # type: ignore[operator]  # a Parameter
        return
    scales = (done.qtensor.scales.float() / s[:, None]).to(done.qtensor.scales.dtype)
    state.solved[state.full(name)] = replace(done, qtensor=replace(done.qtensor, scales=scales))


def _renew(state: BlockState, name: str) -> None:
    """Have a linear that was divided compute so, too."""
    linear = state.block.get_submodule(name)
    place(linear, state.solved[state.full(name)].qtensor.dequantize())
    if linear.bias is not None:
        linear.bias.data.copy_(state.source(f"{name}.bias")[1])  # type: ignore[operator]  # as above


def _with_inputs(solved: Solved, scale: torch.Tensor | None, notes: tuple[str, ...]) -> Solved:
    """A linear with the scale of its inputs, fp32 (1,), and `notes` before its own."""
    qtensor = replace(solved.qtensor, input_scale=scale)
    return replace(solved, qtensor=qtensor, notes=(*notes, *solved.notes))


def _input_change(divided: torch.Tensor | None, rounded: InputChange | None) -> InputChange | None:
    """Division by fp32 `divided` (in_features,), then rounding; None for neither."""
    if divided is None:
        return rounded

    def change(x: torch.Tensor) -> torch.Tensor:
        x = (x.float() / divided).to(x.dtype)
        return x if rounded is None else rounded(x)

    return change
