"""What a method needs beside the inputs it sees and the block it works on: one rule a method.

The rules count what the code of `quantkit.methods` and `quantkit.grid` keeps alive at its worst
moment; `benchmarks/planning.py` holds them against real runs. Not counted: a Hessian that needs
fp64, which happens where inputs are degenerate.
"""

from collections.abc import Callable
from dataclasses import dataclass

from quantkit.core.scheme import Scheme

FP32 = 4
SEARCH = 1 << 18
"""Numbers that a search of scales takes at once, in some fifteen buffers (`grid.search.PANEL`)."""
CHUNK = 1 << 21
"""Numbers of the rows that LDLQ takes at once (`grid.ldlq.NUMBERS`)."""
TRIALS = 3
"""Scales that each group is run with (`methods.gptq.TRIALS`)."""
ROWS = 256
"""Rows on which rescaling tries candidates (`methods.awq.ROWS`)."""
SAMPLE = 2048
"""Statistics keep fewer tokens than that as they were, at most (`stats.hessian.SAMPLE`)."""


@dataclass(frozen=True)
class Task:
    """Linears that read one input, as a method is given them: `outputs` of each, and `inputs`.

    `seen`: there are statistics of the input. `mixes`: other positions see these linears (keys and
    values). `widened`: the weights are not fp32 and become so in a copy.
    """

    outputs: tuple[int, ...]
    inputs: int
    scheme: Scheme
    seen: bool
    mixes: bool
    widened: bool

    @property
    def weights(self) -> int:
        """Number of weights, all linears together."""
        return sum(self.outputs) * self.inputs

    @property
    def largest(self) -> int:
        """Number of weights of the largest linear."""
        return max(self.outputs) * self.inputs

    @property
    def square(self) -> int:
        """Bytes of one Hessian."""
        return FP32 * self.inputs**2

    @property
    def copies(self) -> int:
        """Bytes of the weights in fp32, where they are not so already."""
        return FP32 * self.weights if self.widened else 0

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return min(self.scheme.group_size or self.inputs, self.inputs)


def workspace_bytes(method: str, task: Task) -> int:
    """Peak bytes of solving a group, above its statistics; the largest rule for a new method."""
    rule = RULES.get(method)
    return rule(task) if rule else max(rule(task) for rule in RULES.values())


def _nearest(task: Task, weights: int) -> int:
    """Columns in fp32, codes twice, or beside the codes a group of them as floats."""
    panel = FP32 * task.group * weights // task.inputs
    return 5 * weights + max(weights, panel) + _searching(weights)


def _searching(weights: int) -> int:
    return 15 * FP32 * min(SEARCH, weights)


def _round_each(task: Task) -> int:
    """One linear after the other; the codes of those before it stay."""
    return task.weights - task.largest + _nearest(task, task.largest)


def _rtn(task: Task) -> int:
    return task.copies + _round_each(task)


def _gptq(task: Task) -> int:
    """All linears stacked; the Hessian is ordered and factored, then LDLQ, then nearest codes."""
    weights, square = task.weights, task.square
    width = min(sum(task.outputs), max(16, CHUNK // task.inputs))
    chunk = width * (5 * task.inputs + FP32 * task.group * (4 * TRIALS + 2))
    factoring = (3 if task.mixes else 2) * square
    solving = square + 6 * weights + chunk
    comparing = square + weights + _nearest(task, weights)
    return task.copies + FP32 * weights + max(factoring, solving, comparing)


def _folding(task: Task) -> int:
    """Stretched weights beside the old ones, stretched statistics beside the old ones, rounding."""
    stretched = FP32 * task.weights
    sample = FP32 * SAMPLE * task.inputs
    return stretched + max(task.copies, 2 * task.square + sample, sample + _round_each(task))


def _awq(task: Task) -> int:
    trying = (1 if task.mixes else 0) * task.square + 8 * FP32 * ROWS * task.inputs
    return max(task.copies + FP32 * task.weights + trying, _folding(task))


def _smoothquant(task: Task) -> int:
    trying = 3 * FP32 * task.weights + 4 * FP32 * SAMPLE * task.inputs
    return max(task.copies + trying, _folding(task))


def _nf4(task: Task) -> int:
    """Dequantizing looks values up by 64-bit places: 16 bytes a weight."""
    return task.copies + task.weights + max(16 * task.largest, _searching(task.largest))


RULES: dict[str, Callable[[Task], int]] = {
    "rtn": _rtn,
    "gptq": _gptq,
    "awq": _awq,
    "smoothquant": _smoothquant,
    "nf4": _nf4,
}


def statistics_bytes(task: Task, itemsize: int) -> tuple[int, int]:
    """Bytes of a group's statistics while they are gathered, and once they are complete."""
    if not task.seen:
        return 0, 0
    padded = -(-task.inputs // 64) * 64
    sample = SAMPLE * task.inputs * itemsize
    gathering = FP32 * padded * (padded + SAMPLE) + sample
    return gathering, task.square + sample
