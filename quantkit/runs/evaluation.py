"""All that `eval` can measure of an artifact, in one result."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from quantkit.bench.machine import machine
from quantkit.bench.speed import measure_speed
from quantkit.checkpoint.source import Source
from quantkit.core.errors import InputError
from quantkit.core.gate import Gate
from quantkit.core.progress import Report, silent
from quantkit.eval.compare import SHIPPED_TEXT, compare, text_of, triaged
from quantkit.eval.contamination import screen_by_manifest
from quantkit.eval.reference_store import Form, is_store
from quantkit.eval.subject import read_manifest
from quantkit.eval.tasks import run_tasks
from quantkit.eval.text import TextChoice
from quantkit.model.open import open_model
from quantkit.results.error_map import error_map
from quantkit.results.gates import engine_verdicts, judge, recipe_gates, require_decidable
from quantkit.results.kl_level import kl_level
from quantkit.results.schema import EvalResult


@dataclass(frozen=True)
class Measurement:
    """What to measure, how, and against which limits; the fields are those of `evaluate`."""

    choice: TextChoice = SHIPPED_TEXT
    keep: tuple[Path, Form] | None = None
    tasks: tuple[str, ...] = ()
    gates: tuple[Gate, ...] = ()
    baseline: EvalResult | None = None
    allow_overlap: bool = False
    triage: bool = False
    speed: bool = False
    engine: Literal["vllm"] | None = None
    device: str = "cpu"
    trust_remote_code: bool = False


def measure(
    artifact: Source, reference: Source | None, wanted: Measurement, report: Report = silent
) -> EvalResult:
    """The artifact's figures and the gates' outcomes.

    Raises:
        QuantkitError: the two cannot be compared, or a text, task or engine is not there.
    """
    trust = wanted.trust_remote_code
    old, given = wanted.baseline is not None, reference is not None
    require_decidable(wanted.gates, baseline=old, reference=given)
    manifest = read_manifest(artifact.folder)
    gates, undecided = recipe_gates(manifest)
    extras = _extras(artifact, reference, wanted, report)
    screen = screen_by_manifest(
        artifact.folder, allow=wanted.allow_overlap, trust_remote_code=trust
    )
    found = compare(
        artifact,
        reference,
        wanted.choice,
        keep=wanted.keep,
        screen=screen,
        trust_remote_code=trust,
        report=report,
    )
    extras |= {
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "engines": engine_verdicts(manifest.get("engines")),
        "modules": error_map(manifest.get("modules") or ()),
        "undecided": undecided,
        "environment": {**found.environment, **machine()},
        "notes": [*found.notes, *extras.get("notes", ())],
    }
    if memory := extras.get("memory"):
        told = {name: getattr(found.memory, name) for name in ("planned_bytes", "context_tokens")}
        extras["memory"] = memory.model_copy(update=told)
    found = found.model_copy(update=extras)
    found = found.model_copy(update={"kl_level": kl_level(found)})
    outcomes = judge((*gates, *wanted.gates), found, wanted.baseline)
    return found.model_copy(update={"gates": list(outcomes)})


def _extras(
    artifact: Source, reference: Source | None, wanted: Measurement, report: Report
) -> dict[str, Any]:
    """What does not come from the windows; first, so that an unknown task is told at once."""
    trust = wanted.trust_remote_code
    extras: dict[str, Any] = {}
    if wanted.tasks or wanted.triage or wanted.speed or wanted.engine:
        # they take long: a text that is not there is told before
        model = open_model(artifact.folder, trust_remote_code=trust)
        text_of(artifact, model, wanted.choice, trust_remote_code=trust)
    if wanted.tasks:
        original = _model(reference, "tasks compare the answers of two models").folder
        extras["tasks"] = run_tasks(
            artifact.folder, original, wanted.tasks, trust_remote_code=trust, report=report
        )
    if wanted.triage:
        original_model = _model(reference, "triage exchanges parts of two models")
        extras["triage"] = triaged(
            artifact, original_model, wanted.choice, trust_remote_code=trust, report=report
        )
    if wanted.speed or wanted.engine:
        stored = reference is not None and is_store(reference.folder)
        timed = measure_speed(
            artifact.folder,
            reference.folder if reference and not stored else None,
            local=wanted.speed,
            engine=wanted.engine is not None,
            device=wanted.device,
            trust_remote_code=trust,
            report=report,
        )
        without = "no speed ratio: `{}` is no model that could be run"
        notes = (without.format(reference.folder.name),) if reference and stored else ()
        extras |= {"speed": timed.speed, "notes": (*notes, *timed.notes)}
        if timed.memory.parts_bytes:
            extras["memory"] = timed.memory
    return extras


def _model(reference: Source | None, what: str) -> Source:
    if reference is None or is_store(reference.folder):
        raise InputError(what, why="a saved reference holds none", hint="--reference MODEL")
    return reference
