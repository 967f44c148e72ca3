"""The block loop: every block runs once on the calibration tokens and is quantized meanwhile.

At the first linear of a group the forward of each batch is paused with its input; when all batches
are paused there the group's statistics are complete, the group is solved, its weights are replaced
by the dequantized ones, and the forwards continue. So each group sees the real outputs of its
quantized predecessors, at the cost of one forward. A pause is a switch of greenlets. The groups of
all experts of a block pause together, whether a batch sends an expert tokens or not.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import torch
from greenlet import getcurrent, greenlet
from torch import nn

from quantkit.core.errors import IntegrityError, QuantkitError
from quantkit.core.progress import Progress, Report, silent
from quantkit.model.opened import OpenModel, drop
from quantkit.model.structure import LinearGroup, Structure
from quantkit.model.walk import BlockInputs
from quantkit.pipeline.groups import BlockState, InputChange, SolverConfig, solve_group
from quantkit.pipeline.memory import give_back
from quantkit.stats.hessian import InputCollector
from quantkit.stats.inputs import InputStats


def quantize_blocks(
    model: OpenModel,
    structure: Structure,
    solver: SolverConfig,
    input_ids: torch.Tensor | None,
    report: Report = silent,
) -> Iterator[BlockState]:
    """Quantize the blocks in order, each with the inputs that its quantized predecessors give.

    `input_ids` is int64 (windows, length); None quantizes without calibration inputs. While a block
    computes, the next one is read.

    Raises:
        IntegrityError: an input is not finite; the message names the module.
    """
    batches, calls = model.enter(input_ids) if input_ids is not None else ([], [])
    count = len(model.skeleton.blocks)
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(model.load_block, 0)
        for index in range(count):
            block = coming.result()
            if index + 1 < count:
                coming = reader.submit(model.load_block, index + 1)
            state = BlockState(model, index, block, structure.of(index))
            with torch.no_grad():
                if batches:
                    batches = _run(state, solver, batches, [c[index] for c in calls])
                else:
                    _solve_blindly(state, solver)
            drop(block)
            give_back()
            report(Progress("quantize", index + 1, count, state.summary()))
            yield state


def _solve_blindly(state: BlockState, solver: SolverConfig) -> None:
    for group in state.structure.groups:
        if state.scheme(solver, group) is not None:
            solve_group(state, solver, group, None)


def _run(
    state: BlockState, solver: SolverConfig, batches: list[torch.Tensor], calls: list[BlockInputs]
) -> list[torch.Tensor]:
    """Each batch's output of the block, whose groups are solved meanwhile.

    Batches, in and out, are (sequences, length, width) in the model's dtype.
    """
    quantized = [g for g in state.structure.groups if state.scheme(solver, g) is not None]
    stages = [list(found) for _, found in groupby(quantized, lambda g: g.stage or g.names)]
    pauses = [_Pause(state, groups) for groups in stages]
    runs = [greenlet(call.run) for call in calls]
    outputs = [run.switch(state.block, hidden) for run, hidden in zip(runs, batches, strict=True)]
    for pause in pauses:
        for group in pause.groups:
            group.change = solve_group(state, solver, group.group, group.statistics())
        outputs = [run.switch() for run in runs]
    return outputs


@dataclass
class _Paused:
    """A group under way: where it is, its statistics, and the change of its input once solved."""

    group: LinearGroup
    where: str
    collector: InputCollector
    change: InputChange | None = None

    def add(self, inputs: torch.Tensor) -> None:
        """Count in the inputs (.., in_features) of a batch."""
        try:
            self.collector.add(inputs)
        except QuantkitError as error:
            what = f"the input of `{self.where}` is not finite"
            hint = "check the weights of the blocks before it, or use bf16 where fp16 overflows"
            raise IntegrityError(what, why=error.what, hint=hint) from error

    def statistics(self) -> InputStats | None:
        """Those of all inputs; None for an expert that no token was sent to."""
        return None if self.group.stage and not self.collector.tokens else self.collector.finish()

    def changed(self, inputs: torch.Tensor) -> torch.Tensor:
        """The inputs (.., in_features) as the quantized linears read them."""
        return inputs if self.change is None else self.change(inputs)


class _Pause:
    """Hooks that pause each forward at groups of linears and change the input of all of these.

    At a group by itself they are on its linears, the first of which pauses; at the groups of a
    stage on the module that a list with the inputs of all experts passes through. Inputs are
    (.., in_features) in the model's dtype.
    """

    def __init__(self, state: BlockState, groups: list[LinearGroup]) -> None:
        self.groups = [
            _Paused(
                group, state.full(group.names[0]), InputCollector(mixes_tokens=group.mixes_tokens)
            )
            for group in groups
        ]
        if groups[0].stage:
            stage = state.block.get_submodule(groups[0].stage)
            self.experts = [int(group.names[0].split(".")[-2]) for group in groups]
            stage.register_forward_pre_hook(self._stop_all)
            return
        first, *others = (state.block.get_submodule(name) for name in groups[0].names)
        first.register_forward_pre_hook(self._stop)
        for other in others:
            other.register_forward_pre_hook(self._follow)

    def _stop(self, module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        self.groups[0].add(arguments[0])
        getcurrent().parent.switch()
        return self._follow(module, arguments)

    def _follow(self, _: nn.Module, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return self.groups[0].changed(arguments[0])

    def _stop_all(
        self, _: nn.Module, arguments: tuple[list[torch.Tensor]]
    ) -> tuple[list[torch.Tensor]]:
        inputs = list(arguments[0])
        for expert, group in zip(self.experts, self.groups, strict=True):
            group.add(inputs[expert])
        getcurrent().parent.switch()
        for expert, group in zip(self.experts, self.groups, strict=True):
            inputs[expert] = group.changed(inputs[expert])
        return (inputs,)
