"""A written folder against the model it was made from."""

from pathlib import Path

from quantkit.calibration.tokens import load_tokenizer
from quantkit.checkpoint.source import Source
from quantkit.core.errors import InputError
from quantkit.core.progress import Progress, Report, silent
from quantkit.eval.reference_store import (
    Form,
    Reference,
    is_store,
    read_store,
    store_key,
    write_store,
)
from quantkit.eval.results import EvalResult
from quantkit.eval.session import (
    evaluate_models,
    evaluate_together,
    read_reference,
    require_same_vocabulary,
)
from quantkit.eval.subject import content_hash, describe
from quantkit.eval.text import EvaluationText, TextChoice, read_text, vocabulary_hash
from quantkit.model.open import OpenModel, context_length, open_model

SMOKE_WINDOWS = 16
SHIPPED_TEXT = TextChoice()


def compare(
    artifact: Source,
    reference: Source | None,
    choice: TextChoice = SHIPPED_TEXT,
    *,
    keep: tuple[Path, Form] | None = None,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> EvalResult:
    """Perplexity of `artifact` and, with a `reference`, its divergence from it.

    The reference is a model, or a folder that `keep` (path and form) made earlier.

    Raises:
        InputError: no tokenizer, or no such text, or the stored reference is of another one.
        RefusedError: the two have different vocabularies.
    """
    model = open_model(artifact.folder, trust_remote_code=trust_remote_code)
    text = text_of(artifact, model, choice, trust_remote_code=trust_remote_code)
    subject = describe(artifact, model.checkpoint)
    told = _staged("evaluate", report)
    if keep is not None and (reference is None or is_store(reference.folder)):
        raise InputError("there is no reference to be kept", hint="--reference MODEL")
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
        found = read_reference(model, text, subject, _staged("reference", report))
        write_store(folder, found, model, text, form)
    return read_store(folder, text)


def _staged(stage: str, report: Report) -> Report:
    return lambda p: report(Progress(stage, p.done, p.total, p.detail, p.seconds_left))
