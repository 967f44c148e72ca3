"""One run of a sweep: make the artifact and evaluate it against the shared reference."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from quantkit.calibration.tokens import Calibration
from quantkit.checkpoint.files import read_json, sha256
from quantkit.checkpoint.shards import DEFAULT_SHARD_SIZE
from quantkit.checkpoint.stored import Source
from quantkit.core.errors import QuantkitError
from quantkit.core.manifest import FILE_NAME
from quantkit.core.progress import Report, part_of, silent
from quantkit.core.recipe import CalibrationSpec, Recipe
from quantkit.core.session import Session
from quantkit.eval.compare import stored_reference, text_of
from quantkit.eval.contamination import screen_by_tokens
from quantkit.eval.scoring import Reference
from quantkit.eval.side_by_side import evaluate_models
from quantkit.eval.subject import content_hash, describe
from quantkit.eval.text import EvaluationText, TextChoice
from quantkit.pipeline.calibrate import calibrate, shareable
from quantkit.pipeline.folder import ModelFolder
from quantkit.pipeline.opening import open_folder
from quantkit.pipeline.start import device_of, start
from quantkit.recipes.schema import document_of
from quantkit.results.file import read_result
from quantkit.results.schema import EVAL_FILE, ORIGINAL, EvalResult, SweepResult, SweepRun
from quantkit.runs.produce import Order, produce
from quantkit.runs.sweep.journal import RUNS, Job, require_same, write_json

REFERENCES = "reference"


@dataclass(frozen=True)
class SweepInputs:
    """The inputs that all runs of a sweep share; all calibration text is excluded from scoring."""

    source: Source
    folder: Path
    choice: TextChoice
    calibrations: tuple[CalibrationSpec, ...]


def begin(
    inputs: SweepInputs, jobs: Sequence[Job], session: Session = Session()
) -> tuple[SweepResult, tuple[Job, ...]]:
    """The journal of a new sweep, with the original's result and all jobs pending.

    The returned jobs contain the hashes of their calibration tokens.

    Raises:
        InputError: the folder holds a sweep of another model or workload.
    """
    _SHARED.clear()  # files may have changed since the last sweep of this process
    _CALIBRATIONS.clear()
    original = open_folder(inputs.source, session.on(device_of(session.device)))
    text = _text(inputs, original)
    workload = {key: text.protocol[key] for key in ("name", "text", "tokens_sha256")}
    require_same(inputs.folder, content_hash(original.model.checkpoint), workload)
    text, reference = _shared(inputs, original, session.report)
    path = inputs.folder / RUNS / ORIGINAL / EVAL_FILE
    if not _is_of(path, text, reference):
        path.parent.mkdir(exist_ok=True)
        subject, report = reference.subject, part_of(ORIGINAL, session.report)
        found = evaluate_models(original.model, text, artifact=subject, report=report)
        write_json(path, found.to_dict())
    sealed = []
    for job in jobs:
        made = _calibration(inputs, original, job.recipe.calibration)
        sealed.append(replace(job, calibration_sha256=made.ledger.sha256 if made else None))
    unchanged = SweepRun(
        key=ORIGINAL,
        label=ORIGINAL,
        family="ref",
        eval=str(path.relative_to(inputs.folder)),
        eval_sha256=sha256(path),
        summary=read_result(path, EvalResult).summary(),
        status="done",
    )
    fresh = SweepResult(
        schema="quantkit.sweep/1",
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        model=reference.subject,
        workload=workload,
        runs=[unchanged, *(job.entry(status="pending") for job in sealed)],
    )
    return fresh, tuple(sealed)


def _is_of(path: Path, text: EvaluationText, reference: Reference) -> bool:
    """Whether the result in a file is of this original on this text."""
    if not path.is_file():
        return False
    found = read_result(path, EvalResult)
    same = found.protocol.tokens_sha256 == text.protocol["tokens_sha256"]
    return same and found.artifact.sha256 == reference.subject.sha256


def run_job(inputs: SweepInputs, session: Session, job: Job, artifact: Path) -> EvalResult:
    """The artifact's result; an artifact that an interrupted sweep finished is not made again.

    Raises:
        QuantkitError: the recipe cannot be run, or its artifact cannot be evaluated.
    """
    session = session.on(device_of(session.device)).under(job.label)
    original = open_folder(inputs.source, session)
    prepared = start(original.model, job.recipe)
    if _made(artifact, prepared.plan.recipe, job):
        return _named(read_result(artifact / EVAL_FILE, EvalResult), job)
    if artifact.exists():
        shutil.rmtree(artifact)
    calibration = _calibration(inputs, original, prepared.plan.recipe.calibration)
    order = Order(original, prepared, calibration, artifact, DEFAULT_SHARD_SIZE)

    def score(written: ModelFolder) -> EvalResult:
        text, reference = _shared(inputs, original)
        subject = describe(written.source, written.model.checkpoint)
        return evaluate_models(written.model, text, reference, subject, session.report)

    result = produce(order, score, session=session)
    if result.evaluation is None:
        raise QuantkitError(result.remarks[-1])
    return _named(result.evaluation, job)


def _named(found: EvalResult, job: Job) -> EvalResult:
    """The result named after its run: all artifacts of a sweep are in folders called `artifact`."""
    artifact = found.artifact.model_copy(update={"name": job.key})
    return found.model_copy(update={"artifact": artifact})


def _made(artifact: Path, recipe: Recipe, job: Job) -> bool:
    """Whether a finished artifact of this recipe and calibration exists."""
    if not (artifact / EVAL_FILE).is_file():
        return False
    manifest = read_json(artifact / FILE_NAME)
    calibrated = (manifest["calibration"] or {}).get("sha256")
    same = manifest["recipe"] == document_of(shareable(recipe))
    return bool(same and calibrated == job.calibration_sha256)


_SHARED: dict[SweepInputs, tuple[EvaluationText, Reference]] = {}
_CALIBRATIONS: dict[tuple[SweepInputs, CalibrationSpec], Calibration | None] = {}


def _shared(
    inputs: SweepInputs, original: ModelFolder, report: Report = silent
) -> tuple[EvaluationText, Reference]:
    """Text and reference of all runs; the reference is stored in the sweep's folder."""
    if inputs not in _SHARED:
        text, cache = _text(inputs, original), inputs.folder / REFERENCES
        reference = stored_reference(original, text, cache, report=report)
        _SHARED[inputs] = text, reference
    return _SHARED[inputs]


def _text(inputs: SweepInputs, original: ModelFolder) -> EvaluationText:
    """The text without documents that any of the recipes is calibrated on."""
    text = text_of(original, inputs.choice)
    for spec in inputs.calibrations:
        made = _calibration(inputs, original, spec)
        text = screen_by_tokens(made.input_ids if made else None, original)(text)
    return text


def _calibration(
    inputs: SweepInputs, original: ModelFolder, spec: CalibrationSpec
) -> Calibration | None:
    """Calibration tokens, computed once for all recipes with the same settings."""
    key = (inputs, spec)
    if key not in _CALIBRATIONS:
        _CALIBRATIONS[key] = calibrate(original, spec)
    return _CALIBRATIONS[key]
