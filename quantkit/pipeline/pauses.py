"""Where the forwards of a block wait: at the first linear of a group, or before all experts.

A pause is a switch of greenlets, which returns to the loop once a batch has arrived. When all have,
the loop solves what waits here, and switches back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from greenlet import getcurrent, greenlet
from torch import nn

from quantkit.core.errors import IntegrityError, QuantkitError
from quantkit.core.recipe import ExpertTokens
from quantkit.model.experts import STAGES, Inputs
from quantkit.model.skeleton import linear_facts
from quantkit.model.structure import LinearGroup
from quantkit.stats.experts import ENOUGH, known_enough
from quantkit.stats.hessian import InputCollector
from quantkit.stats.inputs import InputChange, InputStats

Solve = Callable[[LinearGroup, InputStats | None, tuple[str, ...]], InputChange | None]
"""Quantizes a group with the statistics of its input, and notes on these; the change of it."""


class Pause(Protocol):
    """Where all batches wait."""

    def solve(self, solve: Solve) -> None:
        """Solve the groups whose inputs have arrived, and change the inputs."""


@dataclass(frozen=True)
class Place:
    """A block and its module path, what its experts learn from, and `tokens` as in `BlockState`."""

    block: nn.Module
    name: str
    policy: ExpertTokens
    tokens: dict[str, tuple[int, ...]]


def pause_at(place: Place, groups: Sequence[LinearGroup]) -> Pause:
    """A pause of the block's forward at a group, or at the groups of a stage of all experts."""
    return ExpertPause(place, groups) if groups[0].stage else GroupPause(place, groups[0])


class GroupPause:
    """Hooks that pause at the first linear of a group, and change the input of all its linears.

    Statistics are summed up batch by batch: an input is not kept. It is (.., in_features) in the
    model's dtype. Linears that a forward calls again pause at the last call.
    """

    def __init__(self, place: Place, group: LinearGroup) -> None:
        self.group, self.where = group, f"{place.name}.{group.names[0]}"
        self.collector = InputCollector(mixes_tokens=group.mixes_tokens)
        self.change: InputChange | None = None
        self.left: dict[greenlet, int] = {}
        first, *others = (place.block.get_submodule(name) for name in group.names)
        first.register_forward_pre_hook(self._stop)
        for other in others:
            other.register_forward_pre_hook(self._follow)

    def solve(self, solve: Solve) -> None:
        """As `Pause`."""
        self.change = solve(self.group, finished(self.collector, self.where), ())

    def _stop(self, module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        self.collector.add(arguments[0])
        forward = getcurrent()
        self.left[forward] = self.left.get(forward, self.group.calls) - 1
        if not self.left[forward]:
            forward.parent.switch()
        return self._follow(module, arguments)

    def _follow(self, _: nn.Module, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return arguments[0] if self.change is None else self.change(arguments[0])


class ExpertPause:
    """A hook that pauses where the inputs of all experts are known.

    An expert's statistics are summed up only when it is solved, so that those of one are held at a
    time: the inputs of all batches wait here.
    """

    def __init__(self, place: Place, groups: Sequence[LinearGroup]) -> None:
        self.place, self.groups, self.routed = place, groups, place.policy == "routed"
        self.stack, _, stage = groups[0].stage.rpartition(".")
        self.width = linear_facts("", place.block.get_submodule(groups[0].names[0])).in_features
        self.alike = stage == STAGES[0]  # a token is the same input to all experts
        self.waiting: list[Inputs] = []
        self.changes: dict[int, InputChange | None] = {}
        place.block.get_submodule(groups[0].stage).register_forward_pre_hook(self._stop)

    def solve(self, solve: Solve) -> None:
        """As `Pause`."""
        sent = [sum(each) for each in zip(*(i.counts for i in self.waiting), strict=True)]
        few = [self.routed and count < ENOUGH * self.width for count in sent]
        layer = None
        if self.alike and (any(few) or not self.routed):
            layer = self._gather(self.groups[0], lambda inputs: inputs.every(0))
        for group in self.groups:
            expert = expert_of(group)
            stats = self._statistics(group, expert, sent[expert], layer)
            notes = (_note(sent[expert], stats),) if few[expert] else ()
            self.changes[expert] = solve(group, stats, notes)
        self.place.tokens[f"{self.place.name}.{self.stack}"] = tuple(sent)
        self.waiting.clear()

    def _statistics(
        self, group: LinearGroup, expert: int, sent: int, layer: InputStats | None
    ) -> InputStats | None:
        """Those that an expert is calibrated on, given the tokens `sent` to it; None without any.

        `layer`: those of all tokens, where they are the same inputs to all experts.
        """
        if not self.routed:
            return layer or self._gather(group, lambda inputs: inputs.every(expert))
        own = self._gather(group, lambda inputs: inputs.own(expert)) if sent else None
        return known_enough(own, layer)

    def _gather(self, group: LinearGroup, of: Callable[[Inputs], torch.Tensor]) -> InputStats:
        collector = InputCollector()
        for inputs in self.waiting:
            collector.add(of(inputs))
        return finished(collector, f"{self.place.name}.{group.names[0]}")

    def _stop(self, _: nn.Module, arguments: tuple[Inputs]) -> tuple[Inputs]:
        self.waiting.append(arguments[0])
        getcurrent().parent.switch()
        return (arguments[0].changed(self._changed),)

    def _changed(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        change = self.changes.get(expert)
        return inputs if change is None else change(inputs)


def expert_of(group: LinearGroup) -> int:
    """The number of the expert that a group belongs to."""
    return int(group.names[0].split(".")[-2])


def _note(sent: int, stats: InputStats | None) -> str:
    """What is done for an expert that few tokens were sent to."""
    if sent:
        done = "its statistics are shrunk"
    else:
        done = "solved for those of all others" if stats else "rounded to nearest"
    return f"{sent} calibration tokens reached this expert: {done}"


def finished(collector: InputCollector, where: str) -> InputStats:
    """The statistics of all inputs that were added.

    Raises:
        IntegrityError: one of them is not finite; the message names `where`.
    """
    try:
        return collector.finish()
    except QuantkitError as error:
        what = f"the input of `{where}` is not finite"
        hint = "check the weights of the blocks before it, or use bf16 where fp16 overflows"
        raise IntegrityError(what, why=error.what, hint=hint) from error
