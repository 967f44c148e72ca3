"""The block loop: every block runs once on the calibration tokens and is quantized meanwhile.

At the first linear of a group the forward of each batch is paused with its input; when all batches
are paused there the group's statistics are complete, the group is solved, its weights are replaced
by the dequantized ones, and the forwards continue. So each group sees the real outputs of its
quantized predecessors, at the cost of one forward. A pause is a switch of greenlets.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from greenlet import getcurrent, greenlet
from torch import nn

from quantkit.core.errors import IntegrityError, QuantkitError
from quantkit.core.progress import Progress, Report, silent
from quantkit.model.opened import OpenModel, drop
from quantkit.model.structure import Structure
from quantkit.model.walk import BlockInputs
from quantkit.pipeline.groups import BlockState, InputChange, SolverConfig, solve_group
from quantkit.pipeline.memory import give_back
from quantkit.stats.hessian import InputCollector


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
    groups = [g for g in state.structure.groups if state.scheme(solver, g) is not None]
    pauses = [_Pause(state, group.names, group.mixes_tokens) for group in groups]
    runs = [greenlet(call.run) for call in calls]
    outputs = [run.switch(state.block, hidden) for run, hidden in zip(runs, batches, strict=True)]
    for group, pause in zip(groups, pauses, strict=True):
        pause.change = solve_group(state, solver, group, pause.collector.finish())
        outputs = [run.switch() for run in runs]
    return outputs


class _Pause:
    """Hooks on a group's linears: the first pauses each forward, all receive the changed input.

    Arguments of the hooks are the input of a linear: (.., in_features) in the model's dtype.
    """

    def __init__(self, state: BlockState, names: tuple[str, ...], mixes_tokens: bool) -> None:  # noqa: FBT001 - one caller
        self.collector = InputCollector(mixes_tokens=mixes_tokens)
        self.change: InputChange | None = None
        self.where = f"{state.name}.{names[0]}"
        first, *others = (state.block.get_submodule(name) for name in names)
        first.register_forward_pre_hook(self._stop)
        for other in others:
            other.register_forward_pre_hook(self._follow)

    def _stop(self, module: nn.Module, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        try:
            self.collector.add(arguments[0])
        except QuantkitError as error:
            what = f"the input of `{self.where}` is not finite"
            hint = "check the weights of the blocks before it, or use bf16 where fp16 overflows"
            raise IntegrityError(what, why=error.what, hint=hint) from error
        getcurrent().parent.switch()
        return self._follow(module, arguments)

    def _follow(self, _: nn.Module, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return arguments[0] if self.change is None else self.change(arguments[0])
