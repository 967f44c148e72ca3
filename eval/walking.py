"""Run one or two models over a text block by block."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch

from quantkit.core.errors import RefusedError
from quantkit.core.progress import Report, silent
from quantkit.core.resources import TOKENS_PER_BATCH
from quantkit.eval.scoring import Head, Side, Span, self_divergence
from quantkit.eval.text import EvaluationText
from quantkit.grid.transfer import to_device
from quantkit.model.batches import Batches
from quantkit.pipeline.memory import map_large_tensors

FLOOR_WINDOWS = 2
BF16_ROUNDING = 2.0**-9
"""Half a unit in the last place of bf16, as a fraction."""


class ScoredModel(Protocol):
    """A model that runs block by block from disk, as `quantkit.model.open` returns it."""

    @property
    def config(self) -> Any:
        """The transformers config."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation."""

    @property
    def device(self) -> torch.device:
        """The device that computes; batches and logits are there."""

    def walk(self, *input_ids: torch.Tensor, report: Report = silent) -> Iterator[Batches]:
        """After each block, yield its output batches (sequences, length, width).

        The next block reads the yielded sequence, so a caller may replace its entries.
        """

    def head(self) -> Head:
        """What follows the blocks."""


@dataclass(frozen=True)
class Walk:
    """The output of a model, its noise floor (tokens,), and the relative error of each block."""

    side: Side
    floor: torch.Tensor | None = None
    errors: tuple[float, ...] = ()


def walk(model: ScoredModel, text: EvaluationText, report: Report = silent) -> Walk:
    """A model through all windows of the text."""
    map_large_tensors()
    batches: Batches = []
    for batches in model.walk(text.inputs, report=report):  # noqa: B007 - the last are wanted
        pass
    return Walk(side_of(model, batches, text))


def walk_reference(model: ScoredModel, text: EvaluationText, report: Report = silent) -> Walk:
    """As `walk`, with the noise floor: the first windows go through once more in other forms.

    Once an eighth shorter, which in exact arithmetic changes nothing, so that only the rounding of
    other matrix shapes differs; and, unless the model computes in fp32, once with noise of bf16's
    rounding after each block, as other kernels would cause. The larger KL is the floor.
    """
    map_large_tensors()
    steps = _with_noise(model, text, report)
    batches: Batches = []
    for batches in steps:  # noqa: B007 - the last are wanted
        pass
    return _finish(model, batches, text)


def walk_together(
    model: ScoredModel, reference: ScoredModel, text: EvaluationText, report: Report = silent
) -> tuple[Walk, Walk]:
    """Both through the text in lock step; the model's `errors` are ||h_q - h_p||^2 / ||h_p||^2.

    Each block of either is read once, and one block is in memory at a time.
    """
    map_large_tensors()
    errors = []
    own: Batches = []
    theirs: Batches = []
    steps = zip(
        model.walk(text.inputs, report=report), _with_noise(reference, text, silent), strict=True
    )
    for own, theirs in steps:
        errors.append(_relative_error(own, theirs))
    return Walk(side_of(model, own, text), errors=tuple(errors)), _finish(reference, theirs, text)


def depth(model: ScoredModel) -> int:
    """The number of blocks that the config states."""
    return int(model.config.get_text_config(decoder=True).num_hidden_layers)


def _with_noise(model: ScoredModel, text: EvaluationText, report: Report) -> Iterator[Batches]:
    generator = torch.Generator().manual_seed(0)
    probes = _probes(model, text)
    for batches in model.walk(text.inputs, *probes, report=report):
        if len(probes) > 1:
            last = batches[-1]
            noise = torch.rand(last.shape, generator=generator) * 2 - 1
            wide = last.float() * (1 + BF16_ROUNDING * noise.to(last.device))
            batches[-1] = wide.to(last.dtype)
        yield batches


def _probes(model: ScoredModel, text: EvaluationText) -> list[torch.Tensor]:
    """The first windows in the forms that the floor is measured with, one batch each."""
    length = text.inputs.shape[1]
    shorter = text.inputs[:FLOOR_WINDOWS, : max(1, length - length // 8 - 1)]
    # Long windows are batches of one: only the first then belongs to the last batch.
    shorter = shorter[:1] if 2 * length > TOKENS_PER_BATCH else shorter
    noisy = [] if model.dtype is torch.float32 else [text.inputs[: len(shorter)]]
    return [shorter, *noisy]


def _finish(model: ScoredModel, batches: Batches, text: EvaluationText) -> Walk:
    """The side of the whole text, and the larger of the floors that the probes show."""
    probes = _probes(model, text)
    count = len(batches) - len(probes)
    side = side_of(model, batches, text)
    floors = []
    for index in range(count, len(batches)):
        probe = batches[index]
        again = Side(rows_of([probe], model.device), side.head, side.vocabulary)
        spans = [_within(span, probe.shape[1]) for span in text.spans[: len(probe)]]
        floors.append(self_divergence(side, again, spans))
    floors = [floor for floor in floors if len(floor)]
    return Walk(side, max(floors, key=lambda floor: float(floor.mean()), default=None))


def _within(span: Span, length: int) -> Span:
    return min(span[0], length), min(span[1], length)


def side_of(model: ScoredModel, batches: Batches, text: EvaluationText) -> Side:
    """The scoring side of a model, from its last block's output batches, those of the text first.

    Raises:
        RefusedError: the tokenizer has more tokens than the model.
    """
    rows = int(model.config.get_text_config(decoder=True).vocab_size)
    if rows < text.vocabulary:
        raise RefusedError(
            f"the model has {rows:,} output tokens, but its tokenizer has {text.vocabulary:,}",
            why="the model has no probability for some tokens of a text",
            hint="the tokenizer that belongs to the model",
        )
    return Side(rows_of(batches, model.device), model.head(), text.vocabulary)


def rows_of(batches: Batches, device: torch.device) -> Callable[[int, slice], torch.Tensor]:
    """Rows of a window, on `device`, by window and positions; batches but the last are equal."""
    size = len(batches[0])
    batch = lru_cache(1)(lambda index: to_device(batches[index], device))
    return lambda window, positions: batch(window // size)[window % size, positions]


def _relative_error(own: Batches, theirs: Batches) -> float:
    """Over the batches that both have; the reference's last ones are its probes."""
    distance = norm = 0.0
    for q, p in zip(own, theirs, strict=False):
        distance += float((q.float() - p.float()).square().sum())
        norm += float(p.float().square().sum())
    return distance / norm if norm else 0.0
