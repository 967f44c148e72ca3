"""One run of a sweep: make the artifact, score it against what all runs share."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from quantkit.calibration.tokens import Calibration
from quantkit.checkpoint.files import read_json, sha256
from quantkit.checkpoint.source import Source
from quantkit.checkpoint.writer import DEFAULT_SHARD_SIZE
from quantkit.core.errors import QuantkitError
from quantkit.core.manifest import FILE_NAME
from quantkit.core.progress import Progress, Report, silent
from quantkit.core.recipe import CalibrationSpec, Recipe
from quantkit.eval.calibrated import screen_by_tokens
from quantkit.eval.compare import stored_reference, text_of
from quantkit.eval.produce import Order, produce
from quantkit.eval.reference_store import Reference
from quantkit.eval.results import EVAL_FILE, EvalResult, SweepResult, SweepRun
from quantkit.eval.session import evaluate_models
from quantkit.eval.subject import describe
from quantkit.eval.sweep import RUNS, Job, read_eval, write_json
from quantkit.eval.text import EvaluationText, TextChoice
from quantkit.model.open import OpenModel, open_model
from quantkit.pipeline.calibrate import calibrate, shareable
from quantkit.pipeline.start import start
from quantkit.recipes.schema import document_of

REFERENCES = "reference"
ORIGINAL = "original"


@dataclass(frozen=True)
class SweepInputs:
    """What all runs of a sweep share; text that one of them is calibrated on scores none."""

    source: Source
    folder: Path
    choice: TextChoice
    calibrations: tuple[CalibrationSpec, ...]
    device: str
    trust_remote_code: bool


def begin(inputs: SweepInputs, jobs: Sequence[Job], report: Report = silent) -> SweepResult:
    """The journal of a sweep that has not run: the original's result, and every job as pending."""
    text, reference = _shared(inputs, report)
    path = inputs.folder / RUNS / ORIGINAL / EVAL_FILE
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        model = open_model(inputs.source.folder, trust_remote_code=inputs.trust_remote_code)
        found = evaluate_models(model, text, artifact=reference.subject, report=report)
        write_json(path, found.to_dict())
    original = SweepRun(
        key=ORIGINAL,
        label=ORIGINAL,
        family="ref",
        eval=str(path.relative_to(inputs.folder)),
        eval_sha256=sha256(path),
        summary=read_eval(path).summary(),
        status="done",
    )
    return SweepResult(
        schema="quantkit.sweep/1",
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        model=reference.subject,
        workload={key: text.protocol[key] for key in ("name", "text", "tokens_sha256")},
        runs=[original, *(job.entry(status="pending") for job in jobs)],
    )


def run_job(inputs: SweepInputs, job: Job, artifact: Path, report: Report = silent) -> EvalResult:
    """The artifact's result; one that a killed sweep had finished is not made again.

    Raises:
        QuantkitError: the recipe cannot be run, or its artifact cannot be evaluated.
    """
    trust = inputs.trust_remote_code
    prepared = start(inputs.source.folder, job.recipe, inputs.device, trust_remote_code=trust)
    if _made(artifact, prepared.plan.recipe):
        return _named(read_eval(artifact / EVAL_FILE), job)
    if artifact.exists():
        shutil.rmtree(artifact)
    calibration = _calibration(inputs, prepared.model, prepared.plan.recipe.calibration)
    order = Order(inputs.source, prepared, calibration, artifact, DEFAULT_SHARD_SIZE, trust)

    def told(progress: Progress) -> None:
        report(replace(progress, stage=f"{job.label}: {progress.stage}"))

    result = produce(order, lambda written: _score(inputs, written, told), report=told)
    if result.evaluation is None:
        raise QuantkitError(result.remarks[-1])
    return _named(result.evaluation, job)


def _named(found: EvalResult, job: Job) -> EvalResult:
    """The result by the name of its run; every artifact of a sweep lies in a folder `artifact`."""
    artifact = found.artifact.model_copy(update={"name": job.key})
    return found.model_copy(update={"artifact": artifact})


def _made(artifact: Path, recipe: Recipe) -> bool:
    """Whether the artifact is there, measured, and of this recipe."""
    if not (artifact / EVAL_FILE).is_file():
        return False
    return bool(read_json(artifact / FILE_NAME)["recipe"] == document_of(shareable(recipe)))


def _score(inputs: SweepInputs, written: Source, report: Report) -> EvalResult:
    text, reference = _shared(inputs)
    model = open_model(written.folder, trust_remote_code=inputs.trust_remote_code)
    subject = describe(written, model.checkpoint)
    return evaluate_models(model, text, reference, subject, report)


_SHARED: dict[SweepInputs, tuple[EvaluationText, Reference]] = {}
_CALIBRATIONS: dict[tuple[SweepInputs, CalibrationSpec], Calibration | None] = {}


def _shared(inputs: SweepInputs, report: Report = silent) -> tuple[EvaluationText, Reference]:
    """Text and reference of all runs, the latter from the sweep's own store."""
    if inputs not in _SHARED:
        source, trust = inputs.source, inputs.trust_remote_code
        model = open_model(source.folder, trust_remote_code=trust)
        text = text_of(source, model, inputs.choice, trust_remote_code=trust)
        for spec in inputs.calibrations:
            ids = _calibration(inputs, model, spec)
            tokens = ids.input_ids if ids else None
            text = screen_by_tokens(tokens, source.folder, trust_remote_code=trust)(text)
        cache = inputs.folder / REFERENCES
        _SHARED[inputs] = text, stored_reference(source, model, text, cache, report=report)
    return _SHARED[inputs]


def _calibration(
    inputs: SweepInputs, model: OpenModel, spec: CalibrationSpec
) -> Calibration | None:
    """Calibration tokens, made once for all recipes that ask for the same."""
    key = (inputs, spec)
    if key not in _CALIBRATIONS:
        trust = inputs.trust_remote_code
        _CALIBRATIONS[key] = calibrate(model, spec, trust_remote_code=trust)
    return _CALIBRATIONS[key]
