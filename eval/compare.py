"""Compare an artifact's folder with the original model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from quantkit.calibration.tokens import Calibration
from quantkit.checkpoint.claim import check_output
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.progress import Report, part_of, silent
from quantkit.core.resources import TOKENS_PER_BATCH
from quantkit.eval.contamination import screen_by_tokens
from quantkit.eval.effort import Effort, announce, triage_effort
from quantkit.eval.protocol import find_protocol
from quantkit.eval.reference_store import Form, read_store, store_key, write_store
from quantkit.eval.scoring import Reference
from quantkit.eval.side_by_side import (
    evaluate_models,
    evaluate_together,
    read_reference,
    require_same_vocabulary,
)
from quantkit.eval.subject import content_hash, describe
from quantkit.eval.text import EvaluationText, TextChoice
from quantkit.eval.triage import quantized_kinds, triage
from quantkit.eval.walking import depth
from quantkit.eval.windows import read_text, vocabulary_hash
from quantkit.model.opened import OpenModel, context_length
from quantkit.pipeline.folder import ModelFolder
from quantkit.results.schema import EvalResult, Triage

SMOKE_WINDOWS = 16
TRIAGE_WINDOWS = 4
Screen = Callable[[EvaluationText], EvaluationText]


def _all_of_it(text: EvaluationText) -> EvaluationText:
    return text


SHIPPED_TEXT = TextChoice()


def compare(
    artifact: ModelFolder,
    reference: ModelFolder | Path | None,
    choice: TextChoice = SHIPPED_TEXT,
    *,
    keep: tuple[Path, Form] | None = None,
    screen: Screen = _all_of_it,
    report: Report = silent,
) -> EvalResult:
    """Perplexity of `artifact` and, with a `reference`, its divergence from it.

    The reference is a model, or the path of a stored reference, which `keep` (path and form)
    writes. `screen` may leave out documents, or refuse the text. Each model computes on its device.

    Raises:
        InputError: tokenizer or text is missing, or the stored reference has another text.
        RefusedError: the two have different vocabularies.
    """
    if keep is not None:
        check_output(keep[0])
    model = artifact.model
    text = screen(text_of(artifact, choice))
    subject = describe(artifact.source, model.checkpoint)
    if keep is not None and not isinstance(reference, ModelFolder):
        raise InputError("--save-reference needs the original", hint="--reference MODEL")
    walks = 1 if reference is None or isinstance(reference, Path) else 2
    announce("evaluate", Effort(walks, 1 if reference is None else 2), model, text, report)
    report = part_of("evaluate", report)
    if reference is None:
        return evaluate_models(model, text, artifact=subject, report=report)
    if isinstance(reference, Path):
        return evaluate_models(
            model, text, read_store(reference, text, model.device), subject, report
        )
    require_same_vocabulary(vocabulary_hash(reference.tokenizer), text.vocabulary_sha256)
    original = replace(reference.model, room=model.room)  # what waits, waits in one place
    subjects = (subject, describe(reference.source, original.checkpoint))
    result, computed = evaluate_together(model, original, text, subjects, report)
    if keep is not None:
        write_store(keep[0], computed, original, text, keep[1])
    return result


def smoke_windows(model: OpenModel) -> tuple[int, int]:
    """The number and length of the windows that `smoke_score` takes at most."""
    length = find_protocol(SHIPPED_TEXT.protocol).length or TOKENS_PER_BATCH
    return SMOKE_WINDOWS, min(length, context_length(model))


def smoke_score(
    original: ModelFolder, calibration: Calibration | None, report: Report = silent
) -> Callable[[ModelFolder], EvalResult]:
    """A function that evaluates a new artifact on the bundled text, without calibration text."""
    ids = calibration.input_ids if calibration else None

    def score(artifact: ModelFolder) -> EvalResult:
        choice, screen = TextChoice(windows=SMOKE_WINDOWS), screen_by_tokens(ids, original)
        return compare(artifact, original, choice, screen=screen, report=report)

    return score


def triaged(
    artifact: ModelFolder,
    reference: ModelFolder,
    choice: TextChoice = SHIPPED_TEXT,
    report: Report = silent,
) -> Triage:
    """KL contribution of each block and kind of linear of `artifact` against `reference`.

    It uses a few windows only: with n blocks a window costs n times as much as in an evaluation.

    Raises:
        RefusedError: the two have different numbers of blocks.
    """
    model, original = artifact.model, reference.model
    if depth(model) != depth(original):
        raise RefusedError(
            "the model and its reference have different numbers of blocks",
            why="triage exchanges them one by one",
            hint="the model that the artifact was made from as --reference",
        )
    few = replace(choice, windows=min(choice.windows or TRIAGE_WINDOWS, TRIAGE_WINDOWS))
    original = replace(original, room=model.room)
    text = text_of(artifact, few)
    effort = triage_effort(depth(model), len(quantized_kinds(model)))
    announce("triage", effort, model, text, report)
    return triage(model, original, text, report)


def text_of(folder: ModelFolder, choice: TextChoice) -> EvaluationText:
    """The text, tokenized by the model's tokenizer, in windows no longer than its context."""
    return read_text(choice, folder.tokenizer, context_length(folder.model))


def stored_reference(
    original: ModelFolder,
    text: EvaluationText,
    cache: Path,
    form: Form = "hidden",
    report: Report = silent,
) -> Reference:
    """The model's reference on `text` from the folder `cache`; computed and stored if missing.

    Its name there is a hash of weights, token ids, protocol and dtype, so that it is never stale;
    the device on which it was computed is not in it, and moves figures by their noise floor.
    """
    model = original.model
    dtype = str(model.dtype).removeprefix("torch.")
    folder = cache / store_key(content_hash(model.checkpoint), text, dtype, form)
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        subject = describe(original.source, model.checkpoint)
        found = read_reference(model, text, subject, part_of("reference", report))
        write_store(folder, found, model, text, form)
    return read_store(folder, text, model.device)
