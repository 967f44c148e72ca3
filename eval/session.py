"""A model and its reference scored on the same text, one block of either in memory at a time."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from quantkit.core import registry
from quantkit.core.errors import RefusedError
from quantkit.core.progress import Report, silent
from quantkit.eval.metric import Figure, Metric, Scores
from quantkit.eval.scoring import Side, score_tokens, self_divergence
from quantkit.eval.text import EvaluationText
from quantkit.model.open import TOKENS_PER_BATCH

FLOOR_WINDOWS = 2


class ScoredModel(Protocol):
    """A model that runs without being in memory, as `quantkit.model.open` gives it."""

    @property
    def config(self) -> Any:
        """The transformers config."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation."""

    def hidden_states(self, input_ids: torch.Tensor, report: Report = silent) -> torch.Tensor:
        """The last block's output (windows, length, width) for `input_ids` (windows, length)."""

    def head(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """What follows: rows of that output (rows, width) to fp32 logits (rows, vocab)."""


@dataclass(frozen=True)
class Reference:
    """What a comparison needs of the original: computed once, it serves any number of artifacts."""

    side: Side
    dtype: torch.dtype
    floor: torch.Tensor


@dataclass(frozen=True)
class Evaluation:
    """Figures by name, what they were measured on, and whether they can be believed.

    `valid` is False where a position's logits were not finite: the figures are then no measurement.
    """

    figures: Mapping[str, Figure]
    tokens: int
    windows: int
    protocol: Mapping[str, Any]
    valid: bool = True
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: a figure that is not finite is None."""
        return {
            "status": "valid" if self.valid else "invalid",
            **{name: _finite(figure) for name, figure in self.figures.items()},
            "tokens": self.tokens,
            "windows": self.windows,
            "protocol": dict(self.protocol),
            "notes": list(self.notes),
        }


def read_reference(model: ScoredModel, text: EvaluationText, report: Report = silent) -> Reference:
    """The original's hidden states on `text`, and how far it is from itself.

    The floor is measured by running the first windows again, an eighth shorter: exact arithmetic
    would give the same states, so what differs is the rounding of other matrix shapes.
    """
    side = _side(model, text.tokens, report)
    length = text.tokens.shape[1]
    shorter = text.tokens[:FLOOR_WINDOWS, : max(1, length - length // 8 - 1)]
    again = replace(side, hidden=model.hidden_states(shorter))
    return Reference(side, model.dtype, self_divergence(side, again))


def evaluate_models(
    model: ScoredModel,
    text: EvaluationText,
    reference: Reference | None = None,
    report: Report = silent,
) -> Evaluation:
    """Every metric of the model on `text`; without a reference, those that need none.

    Raises:
        RefusedError: the two models have different vocabularies.
    """
    side = _side(model, text.tokens, report)
    if reference is not None and side.vocab != reference.side.vocab:
        raise RefusedError(
            f"the model has {side.vocab} tokens and the reference {reference.side.vocab}",
            why="distributions over different vocabularies cannot be compared",
            hint="the model that the artifact was made from as --reference",
        )
    other = reference.side if reference else None
    scores = score_tokens(text.tokens, text.clusters, side, other, report)
    if reference is not None:
        scores = replace(scores, floor=reference.floor)
    length = text.tokens.shape[1]
    protocol = dict(text.protocol) | {
        "dtype": _name(model.dtype),
        "batch": min(len(text.tokens), max(1, TOKENS_PER_BATCH // length)),
    }
    if reference is not None:
        protocol["reference_dtype"] = _name(reference.dtype)
    fault = _fault(scores)
    return Evaluation(
        _figures(scores),
        tokens=scores.nll.numel(),
        windows=len(scores.nll),
        protocol=protocol,
        valid=fault is None,
        notes=(*text.notes, *([fault] if fault else [])),
    )


def _side(model: ScoredModel, tokens: torch.Tensor, report: Report) -> Side:
    vocab = int(model.config.get_text_config().vocab_size)
    return Side(model.hidden_states(tokens, report), model.head(), vocab)


def _figures(scores: Scores) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name in registry.names("eval.metrics"):
        metric: Metric = registry.load("eval.metrics", name, "METRIC")
        figures |= metric.measure(scores)
    return figures


def _fault(scores: Scores) -> str | None:
    """How many positions are not finite and where the first one is, or None."""
    finite = scores.nll.isfinite()
    if scores.kl is not None:
        finite &= scores.kl.isfinite()
    if bool(finite.all()):
        return None
    window, position = (~finite).nonzero()[0].tolist()
    lost = int((~finite).sum())
    return (
        f"{lost} of {finite.numel()} positions have scores that are not finite, the first is "
        f"position {position} of window {window}"
    )


def _finite(figure: Figure) -> Any:
    """The figure with None in place of what JSON has no number for."""
    if isinstance(figure, Mapping):
        return {name: _finite(value) for name, value in figure.items()}
    return figure if math.isfinite(figure) else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
