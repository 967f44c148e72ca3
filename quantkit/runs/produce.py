"""From a prepared model to a finished folder: quantize, verify, evaluate, describe, publish."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from quantkit.calibration.tokens import Calibration
from quantkit.checkpoint.journal import Journal
from quantkit.checkpoint.stored import Source
from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.limit import Undecided
from quantkit.core.manifest import FILE_NAME, Manifest, schemes_of
from quantkit.core.notebook import html_table
from quantkit.core.progress import Progress
from quantkit.core.recipe import Recipe
from quantkit.core.resources import PAUSED
from quantkit.core.session import Session
from quantkit.eval.compare import smoke_windows
from quantkit.eval.report.load import study_of_manifest
from quantkit.eval.report.page import render
from quantkit.grid.exchange import exchange
from quantkit.pipeline.build import assist, build
from quantkit.pipeline.calibrate import calibrate, shareable
from quantkit.pipeline.folder import ModelFolder
from quantkit.pipeline.manifest import manifest_of
from quantkit.pipeline.measure import Cost, stopwatch
from quantkit.pipeline.memory import map_large_tensors
from quantkit.pipeline.opening import open_folder
from quantkit.pipeline.prepare import Prepared
from quantkit.pipeline.start import start
from quantkit.pipeline.write import planned_tensors
from quantkit.planning.run.estimate import summary
from quantkit.recipes.schema import document_of
from quantkit.results.error_map import error_map
from quantkit.results.gates import SMOKE, engine_support, judge, unscored
from quantkit.results.kl_level import kl_level
from quantkit.results.schema import EVAL_FILE, EvalResult, GateOutcome, Subject
from quantkit.runs.card import model_card
from quantkit.runs.ceiling import bounded, ceiling_of
from quantkit.runs.forecast import plan_within, require_memory, what_fits
from quantkit.runs.job import job_of
from quantkit.runs.reading import waiting_room, with_evaluation

PAGE = "report.html"

Score = Callable[[ModelFolder], EvalResult]
"""Evaluates an artifact that is verified but not yet published."""


@dataclass(frozen=True)
class QuantizeResult:
    """The artifact of a finished run and its cost.

    `planned` and `measured` are the manifest's: they exclude the evaluation.
    """

    output: Path
    bytes: int
    bits_per_weight: float
    quantized_bits_per_weight: float | None
    cost: Cost
    planned: Mapping[str, float]
    measured: Mapping[str, Any]
    engines: Mapping[str, str | None]
    recipe: Mapping[str, Any]
    modules: tuple[Mapping[str, Any], ...]
    evaluation: EvalResult | None
    gates: tuple[GateOutcome, ...]
    remarks: tuple[str, ...]
    undecided: Undecided = "warn"

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            "output": str(self.output),
            "bytes": self.bytes,
            "bits_per_weight": self.bits_per_weight,
            "quantized_bits_per_weight": self.quantized_bits_per_weight,
            **asdict(self.cost),
            "planned": dict(self.planned),
            "measured": dict(self.measured),
            "engines": dict(self.engines),
            "recipe": dict(self.recipe),
            "modules": [dict(module) for module in self.modules],
            "evaluation": self.evaluation.to_dict() if self.evaluation else None,
            "gates": [gate.model_dump() for gate in self.gates],
            "remarks": list(self.remarks),
        }

    def _repr_html_(self) -> str:
        made = {
            "method, format": f"{self.recipe['method']}, {self.recipe['format']}",
            "bytes": self.bytes,
            "bits, quantized linears": self.quantized_bits_per_weight,
            "bits, whole model": self.bits_per_weight,
            "seconds": self.cost.seconds,
        }
        figures = self.evaluation.summary().figures() if self.evaluation else {}
        return html_table(str(self.output), ("figure", "value"), {**figures, **made}.items())


@dataclass(frozen=True)
class Order:
    """The inputs of a run and its output folder; `command`: how it was asked for.

    `judged`: whether an evaluation follows.
    """

    original: ModelFolder
    prepared: Prepared
    calibration: Calibration | None
    output: Path
    max_shard_size: int
    command: Mapping[str, Any] | None = None
    judged: bool = False


def ready(
    source: Source, recipe: Recipe, session: Session = Session()
) -> tuple[ModelFolder, Prepared, Calibration | None]:
    """The open model of a source, its plan, and its calibration tokens.

    Raises:
        InputError, RefusedError: as `pipeline.start.start` and `calibrate`.
    """
    original = open_folder(source, session)
    prepared = start(original.model, recipe)
    return original, prepared, calibrate(original, prepared.plan.recipe.calibration)


def assist_with(source: Source, recipe: Recipe, session: Session) -> None:
    """The part of ranks other than the first in a run that `ready` begins and `produce` ends."""
    _, prepared, calibration = ready(source, recipe, session)
    device = prepared.model.device
    with bounded(device, session):
        ceiling_of(device, session)  # in which the first rank plans
        holding = exchange(session.ranks, PAUSED)[0]
        assist(prepared, holding, calibration.input_ids if calibration else None, session)


def produce(
    order: Order,
    score: Score | None = None,
    baseline: EvalResult | None = None,
    session: Session = Session(),
) -> QuantizeResult:
    """Make the artifact; the output folder appears complete or not at all.

    If the evaluation fails, the verified artifact is published with a remark that gives the reason.

    Raises:
        ResourceError: not enough memory or disk; raised before weights are read.
        QuantkitError: with exit code, reason and remedy; the output is then unchanged.
    """
    with drafted(order, session) as draft:
        return finish(draft, score, baseline)


@dataclass(frozen=True)
class Draft:
    """A verified artifact with its manifest that is not yet published."""

    order: Order
    writer: ArtifactWriter
    artifact: ModelFolder
    manifest: Manifest
    watch: Callable[[], Cost]


@contextmanager
def drafted(order: Order, session: Session = Session()) -> Iterator[Draft]:
    """The quantized model as a draft, which is deleted at the end unless `finish` published it.

    What a run that was killed or failed has left is gone on with.

    Raises:
        QuantkitError: as `produce`.
    """
    watch = stopwatch()
    map_large_tensors()
    ids = order.calibration.input_ids if order.calibration else None
    windows = (0, 0) if ids is None else tuple(ids.shape)
    device, shards = order.prepared.model.device, order.max_shard_size
    ceiling = ceiling_of(device, session)
    plan = plan_within(ceiling, order.prepared, windows, shards, session.report)
    if order.judged:
        windows_read = smoke_windows(order.prepared.model)
        plan = with_evaluation(plan, ceiling, order.prepared, windows_read)
    session.report(Progress("plan", 1, 1, summary(plan)))
    remedy = partial(what_fits, plan, ceiling, order.prepared, windows, shards)
    require_memory(plan, ceiling, remedy)
    exchange(session.ranks, plan.memory.holding if plan.memory else PAUSED)
    prepared = replace(order.prepared, plan=plan)
    schemes = prepared.plan.schemes
    specs = planned_tensors(prepared.model, schemes, prepared.format, prepared.cache)
    job = {"devices": session.ranks.count, **job_of(prepared, order.calibration, specs, shards)}
    journal = Journal(order.output, job, order.command, plan.files.kept if plan.files else 0)
    with bounded(device, session), ArtifactWriter(order.output, specs, shards, journal) as writer:
        if journal.blocks:
            blocks = len(prepared.model.skeleton.blocks)
            said = f"{len(journal.blocks)} of {blocks} blocks are done"
            session.report(Progress("continue", 1, 1, said))
        built = build(prepared, writer, ids, session)
        document = document_of(shareable(prepared.plan.recipe))
        manifest = manifest_of(order.original.source, prepared, document, order.calibration, built)
        measured = {**asdict(watch()), "block_peak_bytes": dict(built.peaks)}
        manifest = replace(manifest, planned=plan.resources(), measured=measured)
        writer.write_json(FILE_NAME, manifest.to_dict())
        room = waiting_room(plan.evaluation, writer.folder.parent)
        artifact = order.original.artifact(writer.folder, replace(built.artifact, room=room))
        yield Draft(order, writer, artifact, manifest, watch)


def finish(
    draft: Draft,
    score: Score | None = None,
    baseline: EvalResult | None = None,
    output: Path | None = None,
) -> QuantizeResult:
    """Evaluate a draft, describe it and publish it as the order's output, or as `output`."""
    order, writer, manifest = draft.order, draft.writer, draft.manifest
    found = None
    try:
        found = score(draft.artifact) if score else None
    except Exception as error:  # noqa: BLE001 - no failed evaluation may discard the artifact
        why = getattr(error, "what", None) or f"{type(error).__name__}: {error}"
        why = why.splitlines()[0].replace(str(writer.folder), order.output.name)
        manifest = manifest.remarked(f"not evaluated: {why}")
    judged = _judged(order, manifest, found, baseline)
    writer.output = output or order.output
    _publish(writer, manifest, judged if found else None, order.original.source)
    return QuantizeResult(
        output=writer.output,
        bytes=manifest.bytes,
        bits_per_weight=manifest.bits_per_weight,
        quantized_bits_per_weight=manifest.quantized_bits_per_weight,
        cost=draft.watch(),
        planned=manifest.planned,
        measured=manifest.measured,
        engines=manifest.engines,
        recipe=manifest.recipe,
        modules=manifest.modules,
        evaluation=judged if found else None,
        gates=tuple(judged.gates),
        remarks=manifest.remarks,
        undecided=judged.undecided,
    )


def _judged(
    order: Order, manifest: Manifest, found: EvalResult | None, baseline: EvalResult | None
) -> EvalResult:
    """The result with the manifest's facts of the artifact and the outcomes of the gates."""
    recipe = order.prepared.plan.recipe
    name = recipe.name  # not the folder's: the same inputs give the same bytes
    scored = found or unscored(Subject(name=name))
    artifact = scored.artifact.model_copy(
        update={
            "name": name,
            "bytes": manifest.bytes,
            "bits_per_weight": manifest.bits_per_weight,
            "quantized_bits_per_weight": manifest.quantized_bits_per_weight,
            "method": recipe.method,
            "scheme": ", ".join(schemes_of(manifest.to_dict())),
            "format": manifest.format,
        }
    )
    decides = found is not None and found.protocol.text != SMOKE
    whole = scored.model_copy(
        update={
            "artifact": artifact,
            "engines": engine_support(manifest.engines),
            "modules": error_map(manifest.modules, manifest.expert_tokens),
            # no gate can pass on the bundled text
            "undecided": recipe.undecided if decides else "warn",
        }
    )
    outcomes = list(judge(recipe.gates, whole, baseline))
    return whole.model_copy(update={"gates": outcomes, "kl_level": kl_level(whole)})


def _publish(
    writer: ArtifactWriter, manifest: Manifest, found: EvalResult | None, source: Source
) -> None:
    """Write evaluation, manifest, report and card, and publish the folder."""
    if found is not None:
        writer.write_json(EVAL_FILE, found.to_dict())
    document = manifest.to_dict() | {"evaluation": found.to_dict() if found else None}
    writer.write_json(FILE_NAME, document)
    # the page excludes what differs between two equal runs: seconds and the folder's name
    study = study_of_manifest({**document, "planned": {}, "measured": {}}, manifest.recipe["name"])
    if study is not None:
        writer.write_bytes(PAGE, render(study).encode())
    writer.write_bytes("README.md", model_card(document, source.folder).encode())
    writer.publish()
