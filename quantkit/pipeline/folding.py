"""Fold the scales of a group's input into what produces it."""

from dataclasses import replace

import torch
from torch import nn

from quantkit.model.skeleton import is_transposed
from quantkit.model.structure import ScalePair
from quantkit.pipeline.state import BlockState, place
from quantkit.stats.inputs import InputStats


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
    """Divide the producer by about `wanted`, fp32 (columns,); returns `factors_of` it.

    The module changes in place.
    """
    s, producer = factors_of(state, pair, wanted), state.block.get_submodule(pair.producer)
    rows = pair.rows(s)
    if pair.kind == "linear":
        _divide_linear(state, pair.producer, producer, rows)
    else:
        name, value = state.source(f"{pair.producer}.weight")
        state.changed[name] = _divided_norm(state, pair, wanted)[1]
        producer.weight.data.copy_(state.changed[name])  # type: ignore[operator]  # a Parameter
    bias = getattr(producer, "bias", None)
    if bias is not None:
        name, value = state.source(f"{pair.producer}.bias")
        state.changed[name] = (value.float() / rows).to(value.dtype)
        bias.data.copy_(state.changed[name])
    return s


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
