"""What measuring the options of a fit takes of memory, along the way of `pipeline.sensitivity`."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from quantkit.core.figure import Figure
from quantkit.core.method import GroupShape, Method
from quantkit.core.resources import PAUSED, TOKENS_PER_BATCH, Holding, Memory
from quantkit.pipeline.choices import Choice
from quantkit.pipeline.sensitivity import SCORED_BYTES, Probe
from quantkit.planning.run.evaluation import Network
from quantkit.runs.fit.expected import to_solve
from quantkit.runs.fit.problem import Problem
from quantkit.runs.reading import network_of
from quantkit.stats.sizes import SAMPLE, statistics_bytes

FP32 = 4
LOGITS = 5
"""Tables of logits at once: of the original and of a variant, and what is computed of them."""


def measuring_memory(problem: Problem, probe: Probe, holding: Holding = PAUSED) -> Memory:
    """The stages of measuring all options of a problem on a probe's windows, in fp32.

    Each option whose KL is measured is a variant of the model, whose states on the scored windows
    wait until all blocks have run.
    """
    prepared = problem.prepared
    network = network_of(replace(prepared.model, dtype=torch.float32))
    solved = [to_solve(choice) for choice in problem.choices]
    scored, variants = probe.scored.numel(), sum(len(each.probed) for each in solved)
    tokens = probe.statistics.numel() + scored
    waiting = network.states(tokens + variants * scored)
    where = f"{variants} variants and {tokens:,} tokens {waiting:,} B"
    spilled = waiting if holding.spilled else 0
    if holding.spilled:  # but for what enters the blocks of the scored windows
        waiting, where = network.states(scored), "hidden states in a file"
    by_block: dict[int, list[Choice]] = {}
    for each in solved:
        by_block.setdefault(each.choice.block, []).append(each.choice)
    stages = {_block(choices, network, prepared.method) for choices in by_block.values()}
    passing = network.passing(TOKENS_PER_BATCH)
    fixed = waiting + network.block * FP32
    logits = min(SCORED_BYTES, FP32 * scored * network.vocabulary)
    heads = network.following + LOGITS * logits + 3 * network.states(scored)
    entering = network.embedding * (network.itemsize + network.cast)
    entering += 2 * network.states(TOKENS_PER_BATCH)
    figures = [
        Figure("embedding of measuring", waiting + entering, f"{where} + embeddings"),
        Figure("reading of measuring", fixed + network.loading, f"{where} + a block"),
        Figure("divergence of measuring", waiting + heads, f"{where} + logits {heads:,} B"),
    ]
    for gathering, solving in stages:
        rule = f"{where} + a block + statistics {gathering:,} B"
        figures.append(Figure("forward of measuring", fixed + gathering + passing, rule))
        rule += f" + solving {solving:,} B"
        figures.append(Figure("solving of measuring", fixed + gathering + solving, rule))
    return Memory(tuple(figures), holding=holding, spilled_bytes=spilled)


def _block(choices: Sequence[Choice], network: Network, method: Method) -> tuple[int, int]:
    """Bytes of the statistics of all groups of a block, and most bytes of solving one choice."""
    inputs = (width for choice in choices for _, width in _shapes(choice))
    gathering = sum(statistics_bytes(width, network.itemsize)[0] for width in inputs)
    return gathering, max(_solving(choice, method) for choice in choices)


def _solving(choice: Choice, method: Method) -> int:
    """Copies of a choice's weights as they were and as they become, and the method's workspace."""
    weights = sum(f.out_features * f.in_features for f in choice.linears)
    workspaces = [
        method.workspace(GroupShape(outputs, inputs, scheme, sample=2 * SAMPLE))
        for scheme in filter(None, choice.schemes)
        for outputs, inputs in _shapes(choice)
    ]
    return 3 * FP32 * weights + max(workspaces, default=0)


def _shapes(choice: Choice) -> list[tuple[tuple[int, ...], int]]:
    """The outputs and the inputs of each group of a choice."""
    linears = iter(choice.linears)
    members = [[next(linears) for _ in group.names] for group in choice.groups]
    return [(tuple(f.out_features for f in found), found[0].in_features) for found in members]
