"""One group of linears: fold scales into its producer, solve it, put the result in place."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from quantkit.core import registry
from quantkit.core.method import Method, Solved
from quantkit.core.recipe import ExpertTokens
from quantkit.core.scheme import Scheme
from quantkit.grid.activation import int8_per_token
from quantkit.model.opened import OpenModel
from quantkit.model.skeleton import is_transposed
from quantkit.model.structure import BlockStructure, LinearGroup, ScalePair
from quantkit.stats.inputs import InputChange, InputStats


@dataclass(frozen=True)
class SolverConfig:
    """The method, its options, and the scheme of every linear that is quantized (by full name).

    `experts`: which tokens experts are calibrated on, as `CalibrationSpec` states it.
    """

    method: Method
    options: Any
    schemes: Mapping[str, Scheme]
    experts: ExpertTokens = "routed"


@dataclass
class BlockState:
    """A block in progress: `solved` linears by full name, and parameters `changed` by folding.

    `changed` maps checkpoint names to tensors in the dtype of their source. `expert_tokens` are
    those that were sent to each expert, by the full name of the module that holds them.
    """

    model: OpenModel
    index: int
    block: nn.Module
    structure: BlockStructure
    solved: dict[str, Solved] = field(default_factory=dict)
    changed: dict[str, torch.Tensor] = field(default_factory=dict)
    expert_tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)

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

    def summary(self) -> str:
        """Name and mean relative loss of the block, for people."""
        losses = [s.loss for s in self.solved.values() if s.loss is not None]
        return f"{self.name}  loss {sum(losses) / len(losses):.2e}" if losses else self.name

    def source(self, parameter: str) -> tuple[str, torch.Tensor]:
        """Checkpoint name and present value of a parameter, as stored, on the model's device."""
        name = self.model.stored_name(self.full(parameter))
        known = self.changed.get(name)
        if known is None:
            known = self.model.stored(self.full(parameter)).to(self.model.device)
        return name, known


def solve_group(
    state: BlockState,
    solver: SolverConfig,
    group: LinearGroup,
    stats: InputStats | None = None,
    notes: tuple[str, ...] = (),
) -> InputChange | None:
    """Quantize the linears of `group` in place; returns the change of their input (None: none).

    Without statistics (an expert that no token was sent to) they are rounded to nearest where the
    method needs some. `notes` on the statistics become notes on the linears.
    """
    scheme = state.scheme(solver, group)
    assert scheme is not None
    modules = [state.block.get_submodule(name) for name in group.names]
    weights = [matrix(module) for module in modules]
    dtype = getattr(torch, scheme.scale_dtype(state.model.dtype_name))
    divided = None
    pair = _foldable(state, solver, group)
    if stats is not None and pair is not None and solver.method.rescale is not None:
        wanted = solver.method.rescale(weights, stats, scheme, solver.options)
        if wanted is not None:
            divided = fold(state, pair, wanted)
            weights = [weight * divided for weight in weights]
            stats = rescaled(stats, divided)
    if stats is None and solver.method.needs_inputs:
        nearest: Method = registry.load("methods", "rtn", "METHOD")
        solved = nearest.quantize(weights, None, scheme, dtype, nearest.options())
    else:
        solved = solver.method.quantize(weights, stats, scheme, dtype, solver.options)
    for name, module, result in zip(group.names, modules, solved, strict=True):
        state.solved[state.full(name)] = replace(result, notes=(*notes, *result.notes))
        place(module, result.qtensor.dequantize())
    if pair is not None and pair.kind == "linear" and group.stage:
        divided = None  # an expert's inner input is computed anew, and its producer is divided
    return _input_change(divided, scheme)


def _foldable(state: BlockState, solver: SolverConfig, group: LinearGroup) -> ScalePair | None:
    """The pair that feeds `group`; None where its producer is a linear that stays dense."""
    pair = state.structure.pair_of(group)
    if pair is None or (pair.kind == "linear" and state.full(pair.producer) not in solver.schemes):
        return None
    return pair


def matrix(module: nn.Module) -> torch.Tensor:
    """The weight as contiguous fp32 (out_features, in_features); may share the module's memory."""
    weight: torch.Tensor = module.weight.data  # type: ignore[assignment]  # a Parameter
    return (weight.T if is_transposed(module) else weight).float().contiguous()


def place(module: nn.Module, weight: torch.Tensor) -> None:
    """Copy fp32 `weight` (out_features, in_features) into `module`, rounded to its dtype."""
    data: torch.Tensor = module.weight.data  # type: ignore[assignment]  # a Parameter
    data.copy_(weight.T if is_transposed(module) else weight)


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
    """Divide the producer by about `wanted`, fp32 (columns,); returns the exact factors (columns,).

    A norm's weight is divided and rounded to its dtype, and the factors follow from the rounding.
    With biases and quantized rows they cannot: there the factors are powers of two, which change no
    mantissa, so that an already quantized producer keeps its codes. The module changes in place.
    """
    producer = state.block.get_submodule(pair.producer)
    bias = getattr(producer, "bias", None)
    s = pair.rows(wanted)
    if pair.kind == "linear" or bias is not None:
        s = torch.exp2(torch.log2(s).round_())
    if pair.kind == "linear":
        _divide_linear(state, pair.producer, producer, s)
    else:
        s = _divide_norm(state, pair, producer, s)
    if bias is not None:
        name, value = state.source(f"{pair.producer}.bias")
        state.changed[name] = (value.float() / s).to(value.dtype)
        bias.data.copy_(state.changed[name])
    return pair.columns(s)


def _divide_norm(
    state: BlockState, pair: ScalePair, producer: nn.Module, s: torch.Tensor
) -> torch.Tensor:
    """Divide a norm's weight by fp32 `s` (rows,); the factors (rows,) after rounding to its dtype.

    Where the weight is 0 or the ratio is not finite, the weight stays and the factor is 1.
    """
    offset = 1.0 if pair.kind == "norm_offset" else 0.0
    name, value = state.source(f"{pair.producer}.weight")
    acts = value.float() + offset
    new = (acts / s - offset).to(value.dtype)
    taken = acts / (new.float() + offset)  # not s: the stored weight is rounded
    good = torch.isfinite(taken) & (taken > 0)
    new = torch.where(good, new, value)
    state.changed[name] = new
    producer.weight.data.copy_(new)  # type: ignore[operator]  # a Parameter
    return torch.where(good, taken, torch.ones_like(taken))


def _divide_linear(state: BlockState, name: str, producer: nn.Module, s: torch.Tensor) -> None:
    """Divide the rows of a linear by powers of two, fp32 `s` (rows,): its scales if quantized."""
    done = state.solved.get(state.full(name))
    if done is None:
        source, value = state.source(f"{name}.weight")
        rows = s if is_transposed(producer) else s[:, None]
        state.changed[source] = (value.float() / rows).to(value.dtype)
        producer.weight.data.copy_(state.changed[source])  # type: ignore[operator]  # a Parameter
        return
    scales = (done.qtensor.scales.float() / s[:, None]).to(done.qtensor.scales.dtype)
    qtensor = replace(done.qtensor, scales=scales)
    state.solved[state.full(name)] = replace(done, qtensor=qtensor)
    place(producer, qtensor.dequantize())


def _input_change(divided: torch.Tensor | None, scheme: Scheme) -> InputChange | None:
    """Division by fp32 `divided` (in_features,), then 8-bit rounding; None for neither."""
    quantized = scheme.activation == "int8-token"
    if divided is None:
        return int8_per_token if quantized else None

    def change(x: torch.Tensor) -> torch.Tensor:
        x = (x.float() / divided).to(x.dtype)
        return int8_per_token(x) if quantized else x

    return change
