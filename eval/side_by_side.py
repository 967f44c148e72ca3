"""Evaluate a model and its reference on the same text, with one block of each in memory."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from quantkit.core.errors import RefusedError
from quantkit.core.manifest import environment
from quantkit.core.progress import Report, part_of, silent
from quantkit.core.resources import TOKENS_PER_BATCH
from quantkit.eval.metric import Scores, measure_all
from quantkit.eval.planned_memory import planned_memory
from quantkit.eval.scoring import Reference, score_tokens
from quantkit.eval.text import EvaluationText
from quantkit.eval.walking import (
    ScoredModel,
    Walk,
    depth,
    walk,
    walk_reference,
    walk_together,
)
from quantkit.pipeline.processor import device_name
from quantkit.results.estimate import POWER_FACTOR
from quantkit.results.schema import EvalResult, Subject

UNNAMED = Subject(name="model")
RHO = 0.6
"""Assumed correlation of two builds' KL over documents; measured for 4-bit builds: 0.57 to 0.74."""


def read_reference(
    model: ScoredModel, text: EvaluationText, subject: Subject = UNNAMED, report: Report = silent
) -> Reference:
    """The original's hidden states on `text`, and its noise floor."""
    return _reference(walk_reference(model, text, report), model, text, subject)


def evaluate_models(
    model: ScoredModel,
    text: EvaluationText,
    reference: Reference | None = None,
    artifact: Subject = UNNAMED,
    report: Report = silent,
) -> EvalResult:
    """Every metric of the model on `text`; without a reference, only those that need none.

    Raises:
        RefusedError: the reference has another vocabulary.
    """
    if reference is not None:
        require_same_vocabulary(reference.vocabulary_sha256, text.vocabulary_sha256)
    return _evaluate(walk(model, text, report), model, text, reference, artifact, report)


def evaluate_together(
    model: ScoredModel,
    original: ScoredModel,
    text: EvaluationText,
    subjects: tuple[Subject, Subject] = (UNNAMED, UNNAMED),
    report: Report = silent,
) -> tuple[EvalResult, Reference]:
    """As `evaluate_models` for both models at once; also returns the computed reference.

    Both run block by block in lock step, which also gives each block's relative error. Models with
    different numbers of blocks run one after the other.
    """
    if depth(model) == depth(original):
        own, theirs = walk_together(model, original, text, report)
    else:
        own, theirs = (
            walk(model, text, report),
            walk_reference(original, text, part_of("reference", report)),
        )
    reference = _reference(theirs, original, text, subjects[1])
    return _evaluate(own, model, text, reference, subjects[0], report), reference


def require_same_vocabulary(one: str, other: str) -> None:
    """Check that two tokenizers have the same vocabulary, given its hashes.

    Raises:
        RefusedError: they do not.
    """
    if one != other:
        raise RefusedError(
            "the model and its reference have different vocabularies",
            why="distributions over different tokens cannot be compared",
            hint="the model that the artifact was made from as --reference",
        )


def _reference(
    walked: Walk, model: ScoredModel, text: EvaluationText, subject: Subject
) -> Reference:
    return Reference(
        scores=walked.side,
        subject=subject,
        dtype=_name(model.dtype),
        vocabulary_sha256=text.vocabulary_sha256,
        tokens_sha256=text.protocol["tokens_sha256"],
        floor=walked.floor,
    )


def _evaluate(
    walked: Walk,
    model: ScoredModel,
    text: EvaluationText,
    reference: Reference | None,
    artifact: Subject,
    report: Report,
) -> EvalResult:
    beside = reference.scores if reference else None
    floor = reference.floor if reference else None
    scores = score_tokens(text, walked.side, beside, floor, report)
    fault = _fault(scores, text)
    protocol = dict(text.protocol) | {
        "dtype": _name(model.dtype),
        "batch": min(len(text.tokens), max(1, TOKENS_PER_BATCH // text.inputs.shape[1])),
        "reference_dtype": reference.dtype if reference else None,
    }
    figures, sums = measure_all(scores)
    document = {
        "status": "invalid" if fault else "valid",
        "artifact": artifact,
        "reference": reference.subject if reference else None,
        "protocol": protocol,
        "tokens": len(scores.nll),
        **figures,
        "detectable": _detectable(figures),
        "block_relative_error": walked.errors,
        "memory": planned_memory(model.config, model.dtype, artifact.bytes),
        "documents": _documents(scores, sums),
        "environment": environment(device_name(model.device)),
        "notes": [*text.notes, *([fault] if fault else [])],
    }
    return EvalResult.model_validate({name: _finite(part) for name, part in document.items()})


def _detectable(figures: Mapping[str, Any]) -> dict[str, float]:
    """The smallest differences that are found with 80 % power on these documents.

    `log_ratio` is between the model and its reference; `kl_relative` between two builds with
    correlated errors (RHO), as a fraction of the KL.
    """
    found = {}
    kl = figures.get("kl")
    if kl and kl["mean"] > 0:
        paired = kl["standard_error"] * math.sqrt(2 * (1 - RHO))
        found["kl_relative"] = POWER_FACTOR * paired / kl["mean"]
    error = figures["perplexity"].get("log_ratio_standard_error")
    if error is not None:
        found["log_ratio"] = POWER_FACTOR * error
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _documents(scores: Scores, further: Mapping[str, list[float]]) -> dict[str, Any]:
    """Sums per document, with which two results are compared without a model.

    `further`: sums of figures without a column of their own.
    """
    beside = scores.beside
    sums: dict[str, Any] = {"sum_nll": scores.sums(scores.nll).tolist()}
    for name, key in (("sum_nll_reference", "nll"), ("sum_kl_nats", "kl")):
        sums[name] = scores.sums(beside[key]).tolist() if key in beside else []
    if "agreement" in beside:
        sums["top1_hits"] = [round(hits) for hits in scores.sums(beside["agreement"])]
    if any(not math.isfinite(x) for column in sums.values() for x in column):
        sums = {}  # a document with a score that is not finite has no sums
    else:
        sums["sums"] = dict(further)
    return {
        "id": [document.id for document in scores.documents],
        "domain": list(scores.domains),
        "n": [round(count) for count in scores.counts],
        **sums,
    }


def _fault(scores: Scores, text: EvaluationText) -> str | None:
    """How many positions are not finite and where the first one is, or None."""
    finite = scores.nll.isfinite()
    for values in scores.beside.values():
        finite &= values.isfinite()
    if bool(finite.all()):
        return None
    lost = int((~finite).sum())
    places = [(w, p) for w, (start, stop) in enumerate(text.spans) for p in range(start, stop)]
    window, position = places[int((~finite).nonzero()[0])]
    return (
        f"{lost} of {finite.numel()} positions have scores that are not finite, the first is "
        f"position {position} of window {window}"
    )


def _finite(figure: Any) -> Any:
    """The figure with None in place of non-finite numbers; intervals become None as a whole."""
    if isinstance(figure, Mapping):
        return {name: _finite(value) for name, value in figure.items()}
    if isinstance(figure, tuple) and len(figure) == 2 and all(isinstance(x, float) for x in figure):
        return figure if all(map(math.isfinite, figure)) else None
    if isinstance(figure, list | tuple):
        return [_finite(value) for value in figure]
    return None if isinstance(figure, float) and not math.isfinite(figure) else figure


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
