"""Everything that `eval` measures of an artifact, in one result."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from quantkit.bench.machine import machine
from quantkit.bench.speed import measure_speed
from quantkit.checkpoint.destination import require_outside
from quantkit.checkpoint.manifest import read_manifest
from quantkit.checkpoint.spill import disk_folder
from quantkit.checkpoint.stored import Source
from quantkit.core.errors import InputError
from quantkit.core.limit import Gate
from quantkit.core.plan import Plan
from quantkit.core.progress import Progress
from quantkit.core.resources import Holding, Memory
from quantkit.core.session import Limits, Session
from quantkit.eval.compare import SHIPPED_TEXT, TRIAGE_WINDOWS, compare, text_of, triaged
from quantkit.eval.contamination import screen_by_manifest
from quantkit.eval.reference_store import Form, is_store
from quantkit.eval.tasks import run_tasks
from quantkit.eval.text import TextChoice
from quantkit.eval.triage import quantized_kinds
from quantkit.eval.walking import depth
from quantkit.grid.kv_cache import CacheScales
from quantkit.model.batches import Room
from quantkit.pipeline.cached import CacheChoice, cached
from quantkit.pipeline.folder import ModelFolder
from quantkit.pipeline.opening import open_folder
from quantkit.planning.run.estimate import summary
from quantkit.planning.run.evaluation import Reading, evaluation_memory, triage_memory
from quantkit.results.error_map import error_map
from quantkit.results.gates import engine_support, judge, recipe_gates, require_decidable
from quantkit.results.kl_level import kl_level
from quantkit.results.schema import EvalResult
from quantkit.runs.ceiling import bounded, ceiling_of
from quantkit.runs.forecast import held_bytes, larger, require_memory
from quantkit.runs.reading import network_of, plan_reading, waiting_room


@dataclass(frozen=True)
class EvaluationOptions:
    """What to measure, how, and against which gates; `quantkit.evaluate` documents the fields."""

    choice: TextChoice = SHIPPED_TEXT
    keep: tuple[Path, Form] | None = None
    tasks: tuple[str, ...] = ()
    gates: tuple[Gate, ...] = ()
    baseline: EvalResult | None = None
    allow_overlap: bool = False
    triage: bool = False
    speed: bool = False
    engine: Literal["vllm"] | None = None
    kv_cache: CacheChoice = "stored"


def evaluate_artifact(
    artifact: Source,
    reference: Source | None,
    options: EvaluationOptions,
    session: Session = Session(),
) -> EvalResult:
    """The artifact's figures and the outcomes of the gates.

    Raises:
        QuantkitError: the two cannot be compared, or a text, task or engine is missing.
    """
    old, given = options.baseline is not None, reference is not None
    require_decidable(options.gates, baseline=old, reference=given)
    _require_evaluator(options)
    if options.keep:
        for model in filter(None, (artifact, reference)):
            require_outside(options.keep[0], model.folder, "reference")
    manifest = read_manifest(artifact.folder)
    gates, undecided = recipe_gates(manifest)
    own, other = open_folder(artifact, session), _opened(reference, session)
    own = replace(own, model=cached(own.model, options.kv_cache))
    own = replace(own, model=replace(own.model, room=_room(own, other, options, session)))
    screen = screen_by_manifest(own, allow=options.allow_overlap)
    with bounded(own.model.device, session):
        extras = _extras(own, other, options, session)
        found = compare(
            own, other, options.choice, keep=options.keep, screen=screen, report=session.report
        )
    extras |= {
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "engines": engine_support(manifest.get("engines")),
        "modules": error_map(manifest.get("modules") or (), manifest.get("expert_tokens")),
        "undecided": undecided,
        "environment": {**found.environment, **machine()},
        "notes": [
            *(*found.notes, *_aside_note(own), *_cache_note(own, options)),
            *extras.get("notes", ()),
        ],
    }
    if memory := extras.get("memory"):
        plan = {name: getattr(found.memory, name) for name in ("planned_bytes", "context_tokens")}
        extras["memory"] = memory.model_copy(update=plan)
    found = found.model_copy(update=extras)
    found = found.model_copy(update={"kl_level": kl_level(found)})
    outcomes = judge((*gates, *options.gates), found, options.baseline)
    return found.model_copy(update={"gates": list(outcomes)})


def _room(
    artifact: ModelFolder,
    reference: ModelFolder | Path | None,
    options: EvaluationOptions,
    session: Session,
) -> Room:
    """Where hidden states wait, so that the evaluation fits into memory.

    Raises:
        InputError: a limit is stated for what runs whole models in memory.
        ResourceError: it fits in no way.
    """
    model = artifact.model
    _require_streamed(options, session)
    ceiling, text = ceiling_of(model.device, session), text_of(artifact, options.choice)
    others = [reference.model] if isinstance(reference, ModelFolder) else []
    models = tuple(network_of(each) for each in (model, *others))
    windows, length = text.inputs.shape
    reading = Reading(windows, length, model.device.type, saved=options.keep is not None)
    few = replace(reading, windows=min(windows, TRIAGE_WINDOWS))
    variants = 2 * (depth(model) + len(quantized_kinds(model)) + 1)

    def memory_of(holding: Holding) -> Memory:
        found = evaluation_memory(models, reading, holding)
        if not options.triage:
            return found
        triage = triage_memory(models, few, variants, holding)
        spilled = found.spilled_bytes + triage.spilled_bytes
        return replace(found, stages=(*found.stages, *triage.stages), spilled_bytes=spilled)

    plan = plan_reading(memory_of, ceiling, Plan(), held_bytes(model.device))
    require_memory(plan, ceiling, lambda: larger(plan, ceiling))
    session.report(Progress("plan", 1, 1, summary(plan)))
    return waiting_room(plan.evaluation, disk_folder())


def _require_streamed(options: EvaluationOptions, session: Session) -> None:
    """Check that a limit is stated for nothing but the evaluation, which runs block by block.

    Raises:
        InputError: tasks or speed are asked for, too.
    """
    asked = {"--tasks": options.tasks, "--speed": options.speed, "--engine": options.engine}
    others = [name for name, value in asked.items() if value]
    if others and session.limits != Limits():
        limit = "--max-ram" if session.limits.ram is not None else "--max-vram"
        what = f"{limit} does not go with {others[0]}"
        raise InputError(what, why="it runs whole models in memory", hint="one of the two")


def _require_evaluator(options: EvaluationOptions) -> None:
    """Check that another cache is asked of the evaluator alone: others go by the file.

    Raises:
        InputError: tasks or speed are asked for, too.
    """
    asked = {"--tasks": options.tasks, "--speed": options.speed, "--engine": options.engine}
    others = [name for name, value in asked.items() if value]
    if others and options.kv_cache != "stored":
        what = f"--set kv_cache={options.kv_cache} does not go with {others[0]}"
        raise InputError(what, why="it reads the cache from the artifact", hint="one of the two")


def _aside_note(artifact: ModelFolder) -> tuple[str, ...]:
    if not (aside := artifact.model.aside):
        return ()
    return (
        f"not evaluated, as the model's class does not use them: {len(aside)} tensors, first "
        f"`{aside[0]}`",
    )


def _cache_note(artifact: ModelFolder, options: EvaluationOptions) -> tuple[str, ...]:
    if not artifact.model.cache:
        return ("keys and values in 16 bits",) if options.kv_cache == "16-bit" else ()
    ones = all(scales == CacheScales(1.0, 1.0) for scales in artifact.model.cache.values())
    how = "with scales of 1" if ones else "by the scales of the artifact"
    return (f"keys and values rounded to fp8 {how}",)


def _opened(reference: Source | None, session: Session) -> ModelFolder | Path | None:
    """The reference as a model, or the path of a stored one."""
    if reference is None:
        return None
    stored = is_store(reference.folder)
    return reference.folder if stored else open_folder(reference, session)


def _extras(
    artifact: ModelFolder,
    reference: ModelFolder | Path | None,
    options: EvaluationOptions,
    session: Session,
) -> dict[str, Any]:
    """Tasks, triage and speed; they run first, so that an unknown task is refused at once."""
    extras: dict[str, Any] = {}
    folder = artifact.source.folder
    if options.tasks or options.triage or options.speed or options.engine:
        text_of(artifact, options.choice)  # before long work: refuse a missing text
    if options.tasks:
        original = _model(reference, "--tasks needs the original model").source
        extras["tasks"] = run_tasks(folder, original.folder, options.tasks, session)
    if options.triage:
        original_model = _model(reference, "--triage needs the original model")
        extras["triage"] = triaged(artifact, original_model, options.choice, session.report)
    if options.speed or options.engine:
        timed = measure_speed(
            folder,
            reference.source.folder if isinstance(reference, ModelFolder) else None,
            session,
            local=options.speed,
            engine=options.engine is not None,
        )
        notes = timed.notes
        if isinstance(reference, Path):
            without = f"no speed ratio: `{reference.name}` is a stored reference, not a model"
            notes = (without, *notes)
        extras |= {"speed": timed.speed, "notes": notes}
        if timed.memory.parts_bytes:
            extras["memory"] = timed.memory
    return extras


def _model(reference: ModelFolder | Path | None, what: str) -> ModelFolder:
    if not isinstance(reference, ModelFolder):
        why = "a stored reference contains no model"
        raise InputError(what, why=why, hint="--reference MODEL")
    return reference
