"""The time of an evaluation, reported before it begins."""

from dataclasses import dataclass
from time import perf_counter

import torch

from quantkit.core.progress import Progress, Report
from quantkit.core.units import span
from quantkit.eval.text import EvaluationText
from quantkit.model.opened import OpenModel
from quantkit.planning.run.timing import LEAST, MOST

SHORT = 2.0
"""Shorter times in seconds are not reported."""
FEW = 10**10
"""Fewer multiply-adds take less than SHORT seconds on any machine."""
SHAPE = (256, 1024)
"""Rows and width of the product that is timed."""


@dataclass(frozen=True)
class Effort:
    """`passes`: forwards of all blocks over the text; `scorings`: forwards of the head."""

    passes: float
    scorings: int


def triage_effort(blocks: int, kinds: int) -> Effort:
    """The effort of `triage`: a variant for each block and kind of linear, in either direction.

    Block i runs for 2 (i + 1) variants of blocks, those of kinds and the two whole models.
    """
    return Effort(blocks + 3 + 2 * kinds, 2 * (2 * blocks + 2 * kinds + 1))


def announce(
    stage: str, effort: Effort, model: OpenModel, text: EvaluationText, report: Report
) -> None:
    """Report how long `stage` will take, unless it is less than SHORT seconds."""
    seconds = effort_seconds(effort, model, text)
    if seconds[1] > SHORT:
        scored = sum(stop - start for start, stop in text.spans)
        rows = f"{scored:,} tokens, {text.vocabulary:,} logits each"
        report(Progress(stage, 1, 1, f"{span(seconds)} ({rows})"))


def effort_seconds(effort: Effort, model: OpenModel, text: EvaluationText) -> tuple[float, float]:
    """Least and most seconds, from multiply-adds that are timed now; 0 for FEW, or on a GPU."""
    blocks = sum(p.numel() for block in model.skeleton.blocks for p in block.parameters())
    scored = sum(stop - start for start, stop in text.spans)
    width = int(model.text_config.hidden_size)
    forward = effort.passes * blocks * text.inputs.numel()
    head = effort.scorings * scored * width * text.vocabulary
    if forward + head < FEW or model.device.type != "cpu":
        return 0.0, 0.0
    seconds = forward * product_seconds(model.dtype) + head * product_seconds(torch.float32)
    return LEAST * seconds, MOST * seconds


@torch.no_grad()
def product_seconds(dtype: torch.dtype) -> float:
    """Seconds per multiply-add of a matrix product on the CPU in `dtype`."""
    rows, width = SHAPE
    weight, inputs = torch.ones(width, width, dtype=dtype), torch.ones(rows, width, dtype=dtype)
    found = []
    for _ in range(3):
        started = perf_counter()
        torch.nn.functional.linear(inputs, weight)
        found.append(perf_counter() - started)
    return min(found) / (rows * width**2)
