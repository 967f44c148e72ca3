"""The effect of each option of each group on the model's distribution, measured in one pass.

While the original runs through its blocks, the inputs of every group are collected, and each option
is solved from them. Its loss at the group's output (the Hessian loss) costs nothing more. The KL of
the next-token distribution is measured for some options: with that group alone changed, a few
windows run from its block to the end, together with those of all other groups. Computed in fp32,
since a single group changes the distribution by less than the rounding of bf16.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from quantkit.core import registry
from quantkit.core.grid import rounding_of
from quantkit.core.method import Method
from quantkit.core.progress import Progress, Report, silent
from quantkit.core.recipe import ExpertTokens
from quantkit.core.scheme import Scheme
from quantkit.grid.quadratic import row_losses
from quantkit.grid.transfer import to_device
from quantkit.model.batches import Batches, copied
from quantkit.model.calls import BlockInputs
from quantkit.model.experts import STAGES, Inputs
from quantkit.model.matrices import matrix, place
from quantkit.model.opened import OpenModel, batch_size, drop
from quantkit.model.structure import LinearGroup
from quantkit.pipeline.choices import Choice
from quantkit.pipeline.memory import give_back
from quantkit.stats.divergence import token_kl
from quantkit.stats.experts import known_enough
from quantkit.stats.hessian import InputCollector
from quantkit.stats.inputs import InputStats

STRIDE = 2
"""Every second position is scored: the output head costs as much as many blocks."""
SCORED_BYTES = 64 << 20
"""Bytes of fp32 logits at once."""

Probed = Callable[[Choice], Sequence[int]]
"""Indices of the options of a choice whose KL is measured."""


@dataclass(frozen=True)
class Effect:
    """Effect of an option: relative loss of the output, and KL in nats per token where measured."""

    loss: float
    kl: float | None = None


@dataclass(frozen=True)
class Probe:
    """Windows for statistics, and others on which KL is measured: both int64 (n, length).

    `experts`: which tokens experts are calibrated on, as `CalibrationSpec` states it.
    """

    statistics: torch.Tensor
    scored: torch.Tensor
    experts: ExpertTokens = "routed"


@dataclass
class _Variant:
    """The model with one group changed: hidden states of all probe batches so far.

    `states` are fp32 (sequences, length, width), one per batch.
    """

    choice: int
    option: int
    states: Batches


def measure_effects(
    model: OpenModel,
    choices: Sequence[Choice],
    method: Method,
    options: object,
    probe: Probe,
    probed: Probed,
    report: Report = silent,
) -> list[list[Effect]]:
    """The effect of each option of each choice, in their order; loss 0 for None.

    `method` and its `options` are those that will quantize the model.

    Raises:
        QuantkitError: an input is not finite.
    """
    wide = replace(model, dtype=torch.float32)
    batches, calls = wide.enter(probe.statistics, probe.scored)
    first = len(batches) - _batch_count(probe.scored)
    of_statistics, of_scored = range(first), range(first, len(batches))
    losses: list[list[float]] = [[] for _ in choices]
    variants: list[_Variant] = []
    count = len(wide.skeleton.blocks)
    for index in range(count):
        block, now = wide.load_block(index), [call[index] for call in calls]
        here = [k for k, choice in enumerate(choices) if choice.block == index]
        entering, leaving = [batches[i] for i in of_scored], now[first:]
        with torch.no_grad():
            groups = [group for k in here for group in choices[k].groups]
            inputs = _Inputs(block, groups, probe.experts)
            _advance(block, batches, now, of_statistics)
            stats = inputs.seen()
            _advance(block, batches, now, of_scored)
            for variant in variants:
                _advance(block, variant.states, leaving, range(len(leaving)))
            for k in here:
                wanted = probed(choices[k])
                solver = _Solver(method, options, model.dtype_name, stats)
                for j, loss in enumerate(_in_turn(block, choices[k], solver)):
                    losses[k].append(loss)
                    if j in wanted:
                        states = copied(entering, wide.room)
                        _advance(block, states, leaving, range(len(leaving)))
                        variants.append(_Variant(k, j, states))
        drop(block)
        give_back()
        done = (index + 1) / count
        share = (done + done * done) / 2  # later blocks carry more variants
        name = wide.skeleton.block_name(index)
        report(Progress("sensitivity", index + 1, count, name, share))
    original = [batches[i] for i in of_scored]
    divergences = _divergences(wide, original, variants, report)
    known = {(v.choice, v.option): kl for v, kl in zip(variants, divergences, strict=True)}
    return [
        [Effect(loss, known.get((k, j))) for j, loss in enumerate(row)]
        for k, row in enumerate(losses)
    ]


def _batch_count(windows: torch.Tensor) -> int:
    """Number of batches that `OpenModel.enter` makes of int64 (windows, length)."""
    return -(-len(windows) // batch_size(windows.shape[1]))


def _advance(
    block: nn.Module, states: Batches, calls: Sequence[BlockInputs], places: Iterable[int]
) -> None:
    """Put the block's output in place of the batches there; fp32 (sequences, length, width)."""
    device = next(block.parameters()).device
    for i in places:
        states[i] = calls[i].run(block, to_device(states[i], device))


Seen = dict[tuple[str, ...], tuple[InputStats | None, InputStats | None]]
"""Of each group, by its names: the inputs that it is judged by, and those that it is solved with.

None where there are none: of an expert that received no token."""


class _Inputs:
    """Hooks that collect the inputs of groups, those of experts as `pauses.ExpertPause` does."""

    def __init__(
        self, block: nn.Module, groups: Sequence[LinearGroup], policy: ExpertTokens
    ) -> None:
        self.groups, self.routed = groups, policy == "routed"
        self.own = {g.names: InputCollector(mixes_tokens=g.mixes_tokens) for g in groups}
        self.wide: dict[object, InputCollector] = defaultdict(InputCollector)
        stages = dict.fromkeys(group.stage for group in groups if group.stage)
        self.handles = [
            block.get_submodule(stage).register_forward_pre_hook(partial(self._of_experts, stage))
            for stage in stages
        ]
        self.handles += [
            block.get_submodule(group.names[0]).register_forward_pre_hook(partial(self._of, group))
            for group in groups
            if not group.stage
        ]

    def seen(self) -> Seen:
        """What was collected; the hooks are removed."""
        for handle in self.handles:
            handle.remove()
        wide = {key: each.finish() for key, each in self.wide.items() if each.tokens}
        found: Seen = {}
        for group in self.groups:
            collector = self.own[group.names]
            own = collector.finish() if collector.tokens else None
            other = wide.get(_shared(group))
            given = known_enough(own, other) if self.routed else other
            found[group.names] = (own, given if group.stage else own)
        return found

    def _of(self, group: LinearGroup, _: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        self.own[group.names].add(arguments[0])

    def _of_experts(self, stage: str, _: nn.Module, arguments: tuple[Inputs]) -> None:
        inputs, members = arguments[0], [g for g in self.groups if g.stage == stage]
        for group in members:
            self.own[group.names].add(inputs.own(group.expert))
        shared = {_shared(group): group.expert for group in members}
        for key, expert in shared.items():
            if key == stage or not self.routed:
                self.wide[key].add(inputs.every(expert))


def _shared(group: LinearGroup) -> object:
    """What groups share whose input is that of all tokens: those of all experts' first matrices."""
    return group.stage if group.stage.endswith(f".{STAGES[0]}") else group.names


@dataclass(frozen=True)
class _Solver:
    method: Method
    options: object
    dtype: str
    stats: Seen

    def __call__(
        self, weights: list[torch.Tensor], group: LinearGroup, scheme: Scheme
    ) -> tuple[list[torch.Tensor], float, float]:
        """Dequantized weights, squared error of the group's output, and its squared norm.

        Weights, in and out, are fp32 (out_features, in_features); the input is not modified.
        An expert without tokens loses nothing; without statistics it is rounded to nearest.
        """
        stats, given = self.stats[group.names]
        method = self.method if given is not None else registry.load("methods", "rtn", "METHOD")
        options = self.options if given is not None else method.options()
        dtype = getattr(torch, scheme.scale_dtype(self.dtype))
        grid = rounding_of(scheme, dtype, weights)
        solved = method.quantize(weights, given, scheme, grid, options)
        after = [each.qtensor.dequantize() for each in solved]
        if stats is None:
            return after, 0.0, 0.0
        lost = sum(
            float(row_losses(a - w, stats.hessian).double().sum())
            for a, w in zip(after, weights, strict=True)
        )
        whole = sum(float(row_losses(w, stats.hessian).double().sum()) for w in weights)
        return after, lost, whole


def _in_turn(block: nn.Module, choice: Choice, solver: _Solver) -> Iterator[float]:
    """Yield the relative loss of each option of `choice`; the block has that option meanwhile."""
    modules = [[block.get_submodule(name) for name in group.names] for group in choice.groups]
    originals = [[matrix(module).clone() for module in group] for group in modules]

    def put(weights: Sequence[Sequence[torch.Tensor]]) -> None:
        for group, values in zip(modules, weights, strict=True):
            for module, weight in zip(group, values, strict=True):
                place(module, weight)

    for scheme in choice.schemes:
        if scheme is None:
            yield 0.0
            continue
        pairs = zip(originals, choice.groups, strict=True)
        solved = [solver(weights, group, scheme) for weights, group in pairs]
        put([weights for weights, _, _ in solved])
        whole = sum(power for _, _, power in solved)
        yield sum(lost for _, lost, _ in solved) / whole if whole else 0.0
        put(originals)


def _divergences(
    model: OpenModel, original: Sequence[torch.Tensor], variants: Sequence[_Variant], report: Report
) -> list[float]:
    """KL(original || variant) in nats per scored token, of each variant.

    `original` are the last block's outputs, fp32 (sequences, length, width).
    """
    head = model.head()
    rows = _rows(original, model.device)
    totals = [0.0] * len(variants)
    vocabulary = int(model.text_config.vocab_size)
    size = max(1, SCORED_BYTES // (4 * vocabulary))
    parts = range(0, len(rows), size)
    with torch.no_grad():
        for done, at in enumerate(parts, 1):
            log_p = torch.log_softmax(head(rows[at : at + size]), dim=-1)
            for k, variant in enumerate(variants):
                own = _rows(variant.states, model.device)[at : at + size]
                log_q = torch.log_softmax(head(own), dim=-1)
                totals[k] += float(token_kl(log_p, log_q).double().sum())
            report(Progress("divergence", done, len(parts)))
    return [total / len(rows) for total in totals]


def _rows(states: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Scored positions (rows, width) of the last block's fp32 (sequences, length, width)."""
    rows = torch.cat([hidden[:, STRIDE - 1 :: STRIDE].flatten(0, 1) for hidden in states])
    return to_device(rows, device)
