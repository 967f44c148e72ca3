"""The block loop: every block runs once on the calibration tokens and is quantized meanwhile.

At the first linear of a group the forward of each batch is paused with its input; when all batches
are paused there the group's statistics are complete, the group is solved, its weights are replaced
by the dequantized ones, and the forwards continue. So each group sees the real outputs of its
quantized predecessors, at the cost of one forward. All experts of a block pause together. A weight
that several blocks share is quantized in the first that calls it. Where memory is short, forwards
are replayed up to each group instead of waiting there: the same numbers, computed again.

Where weights are compensated, the original model runs beside: a copy of the block as it was gets
the hidden states of original blocks, and pauses at the same groups.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice

import torch
from torch import nn

from quantkit.checkpoint.journal import Journal
from quantkit.core.errors import IntegrityError
from quantkit.core.progress import Progress, Report, silent
from quantkit.core.ranks import Ranks
from quantkit.core.resources import Holding
from quantkit.core.scheme import Scheme
from quantkit.grid.activation import inputs_change
from quantkit.grid.qtensor import PARTS, QTensor, of_parts, parts_of
from quantkit.grid.transfer import beside, to_device, to_host
from quantkit.model.attention import attention_through
from quantkit.model.batches import Batches, copied
from quantkit.model.calls import BlockInputs, apart
from quantkit.model.matrices import place
from quantkit.model.opened import OpenModel, batch_size, drop
from quantkit.model.peaks import Peaks
from quantkit.model.structure import LinearGroup, Structure
from quantkit.model.walk import Keep
from quantkit.pipeline.cache_pause import CachePause, through
from quantkit.pipeline.chain import Chain
from quantkit.pipeline.forward import Forward
from quantkit.pipeline.groups import BlockState, Groups, SolverConfig
from quantkit.pipeline.memory import give_back
from quantkit.pipeline.pauses import Pause, Place, pause_at

UNREACHED = "no text reaches this expert: rounded to nearest"


def quantize_blocks(
    model: OpenModel,
    structure: Structure,
    solver: SolverConfig,
    input_ids: torch.Tensor | None,
    report: Report = silent,
    journal: Journal | None = None,
) -> Iterator[BlockState]:
    """Quantize the blocks in order, each with the inputs that its quantized predecessors give.

    `input_ids` is int64 (windows, length); None quantizes without calibration inputs. While a block
    computes, the next one is read. Each of the solver's ranks runs some of the windows. Blocks that
    the `journal` has are left out.

    Raises:
        IntegrityError: an input is not finite, or a batch takes another way through a block than
            the traced one; the message names the module.
    """
    count = len(model.skeleton.blocks)
    done = len(journal.blocks) if journal else 0
    if done == count:
        return
    chain = _enter(model, solver, input_ids)
    shared = Shared(model, solver.schemes)
    if journal and done:
        chain.restore(done - 1, shared.restore(journal.kept(), model.device), model.device)
    with ThreadPoolExecutor(1) as reader, Peaks(model.device) as peaks:
        coming = reader.submit(beside(model.device, partial(model.load_block, done)))
        for index in range(done, count):
            block = coming.result()
            if index + 1 < count:
                read = partial(model.load_block, index + 1)
                coming = reader.submit(beside(model.device, read))
            state = BlockState(model, index, block, structure.of(index))
            groups = Groups(state, solver)
            original = None
            if solver.compensate and input_ids is not None:
                calls = [c[index] for c in chain.others]
                original = Beside(deepcopy(block), chain.originals, calls)
            shared.put_into(state)
            with torch.no_grad():
                if input_ids is not None:
                    _run(groups, chain.batches, [c[index] for c in chain.calls], original)
                else:
                    _solve_blindly(groups, state.structure.groups)
                _solve_blindly(groups, state.structure.unreached, UNREACHED)
            shared.take_from(state)
            state.settle()
            passed_on = chain.after(index) if solver.ranks.alone else None
            state.passed_on = passed_on and replace(passed_on, shared=shared.kept())
            drop(block)
            del original
            state.peak_bytes = peaks.take()
            give_back()
            report(Progress("quantize", index + 1, count, state.summary()))
            yield state


def _enter(model: OpenModel, solver: SolverConfig, input_ids: torch.Tensor | None) -> Chain:
    """What the first block gets of this rank's windows."""
    own = None if input_ids is None else _own_windows(input_ids, solver.ranks)
    if own is None or not len(own):
        return Chain()
    batches, calls = model.enter(own, keep=_keeping(solver.holding))
    if not solver.compensate:
        return Chain(batches, calls)
    originals = copied(batches, model.room)
    return Chain(batches, calls, originals, [apart(each) for each in calls])


def _own_windows(input_ids: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """The windows, int64 (n, length), that this rank runs: those of whole batches."""
    size = batch_size(input_ids.shape[1])
    own = ranks.slice_of(-(-len(input_ids) // size))
    return input_ids[own.start * size : own.stop * size]


def _solve_blindly(block: Groups, groups: Iterable[LinearGroup], *notes: str) -> None:
    for group in groups:
        if block.state.scheme(block.solver, group) is not None:
            block.solve(group, notes=notes)


def _keeping(holding: Holding) -> Keep:
    """How tensors wait between two forwards."""
    return to_host if holding.offloaded else lambda hidden: hidden


@dataclass(frozen=True)
class Beside:
    """A copy of a block as it was, which gets the `batches` of original blocks, and its calls."""

    block: nn.Module
    batches: Batches
    calls: list[BlockInputs]


def _run(
    groups: Groups,
    batches: Batches,
    calls: list[BlockInputs],
    original: Beside | None = None,
) -> None:
    """Put each batch's output of the block in its place; its groups are solved meanwhile.

    Batches are (sequences, length, width) in the model's dtype, and so are the `original` block's.

    Raises:
        IntegrityError: a batch takes another way through the block than the traced one.
    """
    state, solver = groups.state, groups.solver
    keep, device = _keeping(solver.holding), state.model.device
    tokens, ranks = state.expert_tokens, solver.ranks
    unchanged = original.block if original else None
    where = Place(state.block, state.name, solver.experts, tokens, device, ranks, keep, unchanged)
    pauses = _pauses(groups, where)
    caches = [pause for pause in pauses if isinstance(pause, CachePause)]
    forwards = [Forward(state.block, call, device, solver.holding) for call in calls]
    others = original or Beside(state.block, [], [])
    twins = [Forward(others.block, call, device, solver.holding) for call in others.calls]
    with attention_through(through(caches)) if caches else nullcontext():
        for pause in pauses:
            for index, forward in enumerate(forwards):
                if pause.compared and twins[index].go_on(others.batches[index]) is not None:
                    raise _astray(pause.where)
                forward.go_on(batches[index])
            if pause.arrived != len(batches):
                raise _astray(pause.where)
            pause.solve(groups)
        for running, given in ((forwards, batches), (twins, others.batches)):
            for index, forward in enumerate(running):
                output = forward.go_on(given[index])
                if output is None:
                    raise _astray(state.name)
                given[index] = keep(output)
    state.cache |= {pause.where: pause.scales for pause in caches if pause.scales}


def _pauses(groups: Groups, where: Place) -> list[Pause]:
    """The pauses of a block in the order in which forwards come to them."""
    state, solver = groups.state, groups.solver
    every = state.structure.groups
    quantized = [g for g in every if state.scheme(solver, g) is not None]
    stages = [list(found) for _, found in groupby(quantized, lambda g: g.stage or g.names)]
    found: list[tuple[tuple[int, int], Pause]] = [
        ((every.index(stage[0]), 1), pause_at(where, stage)) for stage in stages
    ]
    if solver.kv_cache:
        for each in state.structure.attentions:
            module = state.block.get_submodule(each.path)
            pause = CachePause(f"{state.name}.{each.path}", module, solver.ranks)
            found.append(((each.after, 0), pause))
    return [pause for _, pause in sorted(found, key=lambda item: item[0])]


def _astray(where: str) -> IntegrityError:
    return IntegrityError(
        f"some calibration windows do not come through `{where}` as the others do",
        why="the block decides by what it reads what it computes",
        hint="leave the block out, with an override that has `skip: true`",
    )


class Shared:
    """The codes of what was quantized so far and stands in later blocks, too.

    `schemes` are those of all linears that are quantized, by full name.
    """

    def __init__(self, model: OpenModel, schemes: Mapping[str, Scheme]) -> None:
        repeats = model.weights.repeats
        shared = {*repeats, *repeats.values()}
        self.names = shared & schemes.keys()
        self.codes: dict[str, QTensor] = {}
        self.schemes = {model.weights.module(name): schemes[name] for name in sorted(self.names)}

    def take_from(self, state: BlockState) -> None:
        """Keep what a finished block shares with others."""
        for linear in self.names & state.solved.keys():
            self.codes[state.model.weights.module(linear)] = state.solved[linear].qtensor

    def kept(self) -> list[torch.Tensor | None]:
        """The codes so far, for a run that goes on after the block that gave the last of them."""
        return [part for name in self.schemes for part in parts_of(self.codes.get(name))]

    def restore(
        self, kept: Iterator[torch.Tensor | None], device: torch.device
    ) -> Iterator[torch.Tensor | None]:
        """Take what `kept` gave from the front of an iterator; returns the rest of it."""
        for name, scheme in self.schemes.items():
            parts = list(islice(kept, PARTS))
            there = [None if part is None else to_device(part, device) for part in parts]
            if parts and (codes := of_parts(there, scheme)) is not None:
                self.codes[name] = codes
        return kept

    def put_into(self, state: BlockState) -> None:
        """Set the weights of a loaded block that an earlier one has quantized."""
        for linear in state.structure.held:
            codes = self.codes.get(state.model.weights.module(state.full(linear)))
            if codes is None:  # left out by the recipe
                continue
            module = state.block.get_submodule(linear)
            place(module, codes.dequantize())
            if change := inputs_change(codes):
                module.register_forward_pre_hook(lambda _, inputs, change=change: change(inputs[0]))
