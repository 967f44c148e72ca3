"""A written folder against the model it was made from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from quantkit.calibration.tokens import Calibration, load_tokenizer
from quantkit.checkpoint.source import Source
from quantkit.checkpoint.writer import check_output
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.progress import Report, part_of, silent
from quantkit.eval.contamination import screen_by_tokens
from quantkit.eval.effort import Effort, announce, triage_effort
from quantkit.eval.reference_store import (
    Form,
    Reference,
    is_store,
    read_store,
    store_key,
    write_store,
)
from quantkit.eval.session import (
    evaluate_models,
    evaluate_together,
    read_reference,
    require_same_vocabulary,
)
from quantkit.eval.subject import content_hash, describe
from quantkit.eval.text import EvaluationText, TextChoice, read_text, vocabulary_hash
from quantkit.eval.triage import quantized_kinds, triage
from quantkit.eval.walking import depth
from quantkit.model.open import OpenModel, context_length, open_model
from quantkit.results.schema import EvalResult, Triage

SMOKE_WINDOWS = 16
TRIAGE_WINDOWS = 4
Screen = Callable[[EvaluationText], EvaluationText]


def _all_of_it(text: EvaluationText) -> EvaluationText:
    return text


SHIPPED_TEXT = TextChoice()


def compare(
    artifact: Source,
    reference: Source | None,
    choice: TextChoice = SHIPPED_TEXT,
    *,
    keep: tuple[Path, Form] | None = None,
    screen: Screen = _all_of_it,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> EvalResult:
    """Perplexity of `artifact` and, with a `reference`, its divergence from it.

    The reference is a model, or a folder that `keep` (path and form) made earlier. `screen` may
    leave out documents, or refuse the text.

    Raises:
        InputError: no tokenizer, or no such text, or the stored reference is of another one.
        RefusedError: the two have different vocabularies.
    """
    if keep is not None:
        check_output(keep[0])
    model = open_model(artifact.folder, trust_remote_code=trust_remote_code)
    text = screen(text_of(artifact, model, choice, trust_remote_code=trust_remote_code))
    subject = describe(artifact, model.checkpoint)
    told = part_of("evaluate", report)
    if keep is not None and (reference is None or is_store(reference.folder)):
        raise InputError("there is no reference to be kept", hint="--reference MODEL")
    walks = 1 if reference is None or is_store(reference.folder) else 2
    announce("evaluate", Effort(walks, 1 if reference is None else 2), model, text, report)
    if reference is None:
        return evaluate_models(model, text, artifact=subject, report=told)
    if is_store(reference.folder):
        known = read_store(reference.folder, text)
        return evaluate_models(model, text, known, subject, told)
    tokenizer = load_tokenizer(reference.folder, trust_remote_code=trust_remote_code)
    require_same_vocabulary(vocabulary_hash(tokenizer), text.vocabulary_sha256)
    original = open_model(reference.folder, trust_remote_code=trust_remote_code)
    subjects = (subject, describe(reference, original.checkpoint))
    result, computed = evaluate_together(model, original, text, subjects, told)
    if keep is not None:
        write_store(keep[0], computed, original, text, keep[1])
    return result


def smoke_score(
    source: Source,
    calibration: Calibration | None,
    *,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> Callable[[Source], EvalResult]:
    """What measures a fresh artifact against its model, on text that ships and did not make it."""
    ids = calibration.input_ids if calibration else None

    def score(written: Source) -> EvalResult:
        return compare(
            written,
            source,
            TextChoice(windows=SMOKE_WINDOWS),
            screen=screen_by_tokens(ids, source.folder, trust_remote_code=trust_remote_code),
            trust_remote_code=trust_remote_code,
            report=report,
        )

    return score


def triaged(
    artifact: Source,
    reference: Source,
    choice: TextChoice = SHIPPED_TEXT,
    *,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> Triage:
    """Which parts of `artifact` carry its divergence from the model `reference`.

    Scored on a few of the windows: with n blocks every window costs n times as much as elsewhere.

    Raises:
        RefusedError: the two have different numbers of blocks.
    """
    model = open_model(artifact.folder, trust_remote_code=trust_remote_code)
    original = open_model(reference.folder, trust_remote_code=trust_remote_code)
    if depth(model) != depth(original):
        raise RefusedError(
            "the model and its reference have different numbers of blocks",
            why="triage exchanges them one by one",
            hint="the model that the artifact was made from as --reference",
        )
    few = replace(choice, windows=min(choice.windows or TRIAGE_WINDOWS, TRIAGE_WINDOWS))
    text = text_of(artifact, model, few, trust_remote_code=trust_remote_code)
    effort = triage_effort(depth(model), len(quantized_kinds(model)))
    announce("triage", effort, model, text, report)
    return triage(model, original, text, report)


def text_of(
    source: Source, model: OpenModel, choice: TextChoice, *, trust_remote_code: bool = False
) -> EvaluationText:
    """The text as the model's own tokenizer sees it, in windows no longer than its context."""
    tokenizer = load_tokenizer(source.folder, trust_remote_code=trust_remote_code)
    return read_text(choice, tokenizer, context_length(model))


def stored_reference(
    source: Source,
    model: OpenModel,
    text: EvaluationText,
    cache: Path,
    form: Form = "hidden",
    report: Report = silent,
) -> Reference:
    """The model's reference on `text` from the folder `cache`, computed and kept there if need be.

    Its name there is the hash of the weights, the token ids, the protocol and the dtype, so that
    nothing stale is ever found.
    """
    dtype = str(model.dtype).removeprefix("torch.")
    folder = cache / store_key(content_hash(model.checkpoint), text, dtype, form)
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        subject = describe(source, model.checkpoint)
        found = read_reference(model, text, subject, part_of("reference", report))
        write_store(folder, found, model, text, form)
    return read_store(folder, text)
