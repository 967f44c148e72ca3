"""Where the forwards of a block wait: at the first linear of a group, or before all experts.

A pause is a switch of greenlets, which returns to the loop once a batch has arrived. When all have,
the loop solves what waits here, and forwards go on, or begin anew and pass.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from greenlet import getcurrent, greenlet
from torch import nn

from quantkit.core.errors import IntegrityError, QuantkitError
from quantkit.core.ranks import ALONE, Ranks
from quantkit.core.recipe import ExpertTokens
from quantkit.grid.exchange import deal, exchange, stream
from quantkit.model.experts import STAGES, Inputs
from quantkit.model.skeleton import linear_facts
from quantkit.model.structure import LinearGroup
from quantkit.model.walk import Keep
from quantkit.stats.experts import ENOUGH, known_enough
from quantkit.stats.hessian import InputCollector
from quantkit.stats.inputs import InputChange, InputStats


class Block(Protocol):
    """What solves the groups of a block: `pipeline.groups.Groups`."""

    def solve(self, group: LinearGroup, stats: InputStats | None) -> InputChange | None:
        """Quantize a group in place, with all ranks; the change of its input."""

    def draft(self, group: LinearGroup, stats: InputStats | None, notes: tuple[str, ...]) -> object:
        """What a group becomes, made by this rank alone."""

    def put(self, group: LinearGroup, draft: Any) -> InputChange | None:
        """Replace a group by a draft of it; the change of its input."""


class Pause(Protocol):
    """Where all batches wait, those of all ranks; `arrived` of them have come here.

    `compared`: each batch's forward through the original block comes here, too, and first.
    """

    arrived: int
    where: str
    compared: bool

    def solve(self, block: Block, /) -> None:
        """Solve the groups of the block whose inputs have arrived, and change the inputs."""


@dataclass(frozen=True)
class Place:
    """A block and its module path, what its experts learn from, and `tokens` as in `BlockState`.

    Several `ranks` keep a group's inputs, as `keep` leaves them, until all of theirs are there.
    `original` is the block as it was, where weights are compensated for what its inputs become.
    """

    block: nn.Module
    name: str
    policy: ExpertTokens
    tokens: dict[str, tuple[int, ...]]
    device: torch.device
    ranks: Ranks = ALONE
    keep: Keep = lambda inputs: inputs
    original: nn.Module | None = None


def pause_at(place: Place, groups: Sequence[LinearGroup]) -> Pause:
    """A pause of the block's forward at a group, or at the groups of a stage of all experts."""
    return ExpertPause(place, groups) if groups[0].stage else GroupPause(place, groups[0])


class GroupPause:
    """Hooks that pause at the first linear of a group, and change the input of all its linears.

    The inputs are (.., in_features) in the model's dtype; one rank alone sums them up as they
    arrive, and with them those of the original block. Linears that a forward calls again pause at
    the last call.
    """

    def __init__(self, place: Place, group: LinearGroup) -> None:
        self.place, self.group, self.where = place, group, f"{place.name}.{group.names[0]}"
        self.collector = InputCollector(mixes_tokens=group.mixes_tokens, ranks=place.ranks)
        self.waiting: list[torch.Tensor] = []
        self.change: InputChange | None = None
        self.arrived, self.solved = 0, False
        self.left: dict[greenlet, int] = {}
        self.originals: list[torch.Tensor] = []
        self.compared = place.original is not None
        first, *others = (place.block.get_submodule(name) for name in group.names)
        first.register_forward_pre_hook(self._stop)
        for other in others:
            other.register_forward_pre_hook(self._follow)
        if place.original is not None:
            original = place.original.get_submodule(group.names[0])
            original.register_forward_pre_hook(self._compare)

    def solve(self, block: Block) -> None:
        """As `Pause`."""
        coming = stream(self.place.ranks, self.waiting, self.place.device)
        pairs = (each.unbind() if self.compared else (each,) for each in coming)
        stats = gathered(self.collector, pairs, self.where)
        self.waiting.clear()
        self.change, self.solved = block.solve(self.group, stats), True

    def _stop(self, module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        if not self.solved:
            self._take(arguments[0])
        return self._follow(module, arguments)

    def _take(self, inputs: torch.Tensor) -> None:
        pair = (inputs, self.originals.pop(0)) if self.compared else (inputs,)
        if self.place.ranks.alone:
            self.collector.add(*pair)
        else:
            self.waiting.append(self.place.keep(torch.stack(pair) if self.compared else inputs))
        if self._last_call():
            self.arrived += 1
            getcurrent().parent.switch()

    def _compare(self, _: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        if not self.solved:
            self.originals.append(arguments[0])
            if self._last_call():
                getcurrent().parent.switch()

    def _last_call(self) -> bool:
        """Whether this forward does not call the linears again."""
        left = self.left.pop(getcurrent(), self.group.calls) - 1
        if left:
            self.left[getcurrent()] = left
        return not left

    def _follow(self, _: nn.Module, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return arguments[0] if self.change is None else self.change(arguments[0])


class ExpertPause:
    """A hook that pauses where the inputs of all experts are known.

    An expert's statistics are summed up only when it is solved, so that those of one are held at a
    time: the inputs of all batches wait here. Ranks take turns of one expert each. The original
    model may send a token to other experts, so nothing is compared.
    """

    compared = False

    def __init__(self, place: Place, groups: Sequence[LinearGroup]) -> None:
        self.place, self.groups, self.routed = place, groups, place.policy == "routed"
        self.stack, _, stage = groups[0].stage.rpartition(".")
        self.width = linear_facts("", place.block.get_submodule(groups[0].names[0])).in_features
        self.alike = stage == STAGES[0]  # a token is the same input to all experts
        self.waiting: list[Inputs] = []
        self.where, self.arrived, self.solved = f"{place.name}.{groups[0].stage}", 0, False
        self.changes: dict[int, InputChange | None] = {}
        place.block.get_submodule(groups[0].stage).register_forward_pre_hook(self._stop)

    def solve(self, block: Block) -> None:
        """As `Pause`."""
        ranks = self.place.ranks
        batches = [
            counts for each in exchange(ranks, [i.counts for i in self.waiting]) for counts in each
        ]
        sent = [sum(each) for each in zip(*batches, strict=True)]
        few = [self.routed and count < ENOUGH * self.width for count in sent]
        layer = None
        if self.alike and (any(few) or not self.routed):
            every = stream(ranks, [inputs.every(0) for inputs in self.waiting])
            collector = InputCollector(ranks=ranks)
            layer = gathered(collector, zip(every), self._where(self.groups[0]))
        for start in range(0, len(self.groups), ranks.count):
            turn = self.groups[start : start + ranks.count]
            given = self._dealt(turn, sent, layer, ranks)
            draft = None
            if ranks.rank < len(turn):
                group = turn[ranks.rank]
                expert = group.expert
                stats = self._statistics(group, given, sent[expert], layer)
                notes = (_note(sent[expert], stats),) if few[expert] else ()
                draft = block.draft(group, stats, notes)
            for group, found in zip(turn, exchange(ranks, draft), strict=False):
                self.changes[group.expert] = block.put(group, found)
        self.place.tokens[f"{self.place.name}.{self.stack}"] = tuple(sent)
        self.waiting.clear()
        self.solved = True

    def _dealt(
        self,
        turn: Sequence[LinearGroup],
        sent: Sequence[int],
        layer: InputStats | None,
        ranks: Ranks,
    ) -> Iterator[torch.Tensor]:
        """The inputs of this rank's expert, which have waited with all ranks."""
        if ranks.alone:
            return self._inputs(turn[0], sent, layer)
        given = [list(self._inputs(group, sent, layer)) for group in turn]
        given += [[] for _ in range(ranks.count - len(turn))]
        return chain.from_iterable(deal(ranks, given))

    def _inputs(
        self, group: LinearGroup, sent: Sequence[int], layer: InputStats | None
    ) -> Iterator[torch.Tensor]:
        """Those here that an expert's statistics need, batch by batch."""
        expert = group.expert
        needed = bool(sent[expert]) if self.routed else layer is None
        for inputs in self.waiting if needed else ():
            yield inputs.own(expert) if self.routed else inputs.every(expert)

    def _statistics(
        self,
        group: LinearGroup,
        inputs: Iterable[torch.Tensor],
        sent: int,
        layer: InputStats | None,
    ) -> InputStats | None:
        """Those that an expert is calibrated on, given the tokens `sent` to it; None without any.

        `layer`: those of all tokens, where they are the same inputs to all experts.
        """
        if not self.routed:
            return layer or gathered(InputCollector(), zip(inputs), self._where(group))
        own = gathered(InputCollector(), zip(inputs), self._where(group)) if sent else None
        return known_enough(own, layer)

    def _where(self, group: LinearGroup) -> str:
        return f"{self.place.name}.{group.names[0]}"

    def _stop(self, _: nn.Module, arguments: tuple[Inputs]) -> tuple[Inputs]:
        if not self.solved:
            self.waiting.append(arguments[0])
            self.arrived += 1
            getcurrent().parent.switch()
        return (arguments[0].changed(self._changed),)

    def _changed(self, expert: int, inputs: torch.Tensor) -> torch.Tensor:
        change = self.changes.get(expert)
        return inputs if change is None else change(inputs)


def _note(sent: int, stats: InputStats | None) -> str:
    """What is done for an expert that few tokens were sent to."""
    if sent:
        done = "its statistics are shrunk"
    else:
        done = "solved for those of all others" if stats else "rounded to nearest"
    return f"{sent} calibration tokens reached this expert: {done}"


def gathered(
    collector: InputCollector, inputs: Iterable[tuple[torch.Tensor, ...]], where: str
) -> InputStats:
    """The statistics of all inputs, (.., in_features) each, alone or with the original ones.

    Raises:
        IntegrityError: one of them is not finite; the message names `where`.
    """
    for each in inputs:
        collector.add(*each)
    try:
        return collector.finish()
    except QuantkitError as error:
        what = f"the input of `{where}` is not finite"
        hint = "check the weights of the blocks before it, or use bf16 where fp16 overflows"
        raise IntegrityError(what, why=error.what, hint=hint) from error
