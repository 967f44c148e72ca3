"""One function per verb: where the parts are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from quantkit.checkpoint.source import Source, resolve
from quantkit.checkpoint.writer import DEFAULT_SHARD_SIZE, ArtifactWriter, check_output
from quantkit.core.errors import InputError
from quantkit.core.manifest import FILE_NAME
from quantkit.core.progress import Progress, Report, silent
from quantkit.pipeline.doctor import Finding, doctor
from quantkit.pipeline.measure import Cost, stopwatch
from quantkit.recipes.loader import build_recipe, load_family
from quantkit.recipes.schema import document_of

if TYPE_CHECKING:
    import torch

    from quantkit.core.gate import Undecided
    from quantkit.core.manifest import Manifest
    from quantkit.core.plan import Plan
    from quantkit.core.recipe import Recipe
    from quantkit.eval.results import EvalResult, GateOutcome, Task
    from quantkit.pipeline.prepare import Prepared

__all__ = [
    "Finding",
    "QuantizeResult",
    "demo",
    "doctor",
    "evaluate",
    "generate",
    "plan",
    "quantize",
]


@dataclass(frozen=True)
class QuantizeResult:
    """What a finished run made and what it cost."""

    output: Path
    bytes: int
    bits_per_weight: float
    cost: Cost
    recipe: Mapping[str, Any]
    modules: tuple[Mapping[str, Any], ...]
    evaluation: Mapping[str, Any] | None
    gates: tuple[GateOutcome, ...]
    remarks: tuple[str, ...]
    undecided: Undecided = "warn"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "output": str(self.output),
            "bytes": self.bytes,
            "bits_per_weight": self.bits_per_weight,
            **asdict(self.cost),
            "recipe": dict(self.recipe),
            "modules": [dict(module) for module in self.modules],
            "evaluation": self.evaluation,
            "gates": [gate.model_dump() for gate in self.gates],
            "remarks": list(self.remarks),
        }


def quantize(  # noqa: PLR0913 - the public surface; each has a default that is right for most
    model: str,
    output: str | Path,
    *,
    recipe: Recipe | None = None,
    device: str = "auto",
    max_shard_size: int = DEFAULT_SHARD_SIZE,
    evaluate: bool = True,
    baseline: str | Path | None = None,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> QuantizeResult:
    """Calibrate, quantize, write, verify and evaluate a model; OUT appears whole or not at all.

    Args:
        model: a folder, or a hub id `org/name[@revision]`.
        output: the folder to make; it must not exist, or be empty.
        recipe: what to do; the default is the recipe `gptq`.
        device: "cpu", "cuda", "cuda:1", or "auto": the GPU if there is one.
        max_shard_size: largest size of a weight file, in bytes.
        evaluate: whether to measure perplexity and KL against the original.
        baseline: the result of an earlier run; what got worse is among the gates that failed.
        trust_remote_code: whether code of the model's folder may run.
        report: is told how far the work is.

    Raises:
        QuantkitError: with exit code, reason and remedy; OUT is then untouched.
    """
    from quantkit.eval.baseline import read_baseline
    from quantkit.eval.card import model_card
    from quantkit.pipeline.build import build
    from quantkit.pipeline.calibrate import calibrate
    from quantkit.pipeline.manifest import manifest_of
    from quantkit.pipeline.write import planned_tensors

    watch = stopwatch()
    check_output(Path(output))
    old = read_baseline(Path(baseline)) if baseline else None
    source = resolve(model, trust_remote_code=trust_remote_code)
    prepared = _prepare(source, recipe, device, trust_remote_code)
    calibration = calibrate(prepared, trust_remote_code=trust_remote_code)
    specs = planned_tensors(prepared.model, prepared.plan.schemes, prepared.format)
    with ArtifactWriter(Path(output), specs, max_shard_size) as writer:
        ids = calibration.input_ids if calibration else None
        built = build(prepared, writer, ids, report, trust_remote_code=trust_remote_code)
        scored = _score(writer.folder, source, ids, trust_remote_code, report) if evaluate else None
        document = document_of(prepared.plan.recipe)
        manifest = manifest_of(source, prepared, document, calibration, built, None, watch())
        result = _judged(manifest, scored, prepared.plan.recipe, old, Path(output).name)
        evaluation = result.to_dict() if evaluate else None
        manifest = replace(manifest, evaluation=evaluation)
        writer.write_json(FILE_NAME, manifest.to_dict())
        writer.write_bytes("README.md", model_card(manifest.to_dict(), source.folder).encode())
        writer.publish()
    return QuantizeResult(
        output=Path(output),
        bytes=manifest.bytes,
        bits_per_weight=manifest.bits_per_weight,
        cost=watch(),
        recipe=document,
        modules=manifest.modules,
        evaluation=evaluation,
        gates=tuple(result.gates),
        remarks=manifest.remarks,
        undecided=result.undecided,
    )


def plan(
    model: str,
    *,
    recipe: Recipe | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
) -> Plan:
    """What `quantize` would do with each linear, without doing it (`quantize --dry-run`).

    Raises:
        QuantkitError: as `quantize` would, before any work.
    """
    source = resolve(model, trust_remote_code=trust_remote_code)
    return _prepare(source, recipe, device, trust_remote_code).plan


def evaluate(  # noqa: PLR0913 - the public surface; each has a default that is right for most
    artifact: str,
    *,
    reference: str | None = None,
    text: str | None = None,
    protocol: str = "qk@1",
    sequence_length: int | None = None,
    windows: int | None = None,
    save_reference: str | Path | None = None,
    reference_form: Literal["hidden", "topk"] = "hidden",
    tasks: Sequence[str] = (),
    gates: Sequence[str] = (),
    baseline: str | Path | None = None,
    allow_overlap: bool = False,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> EvalResult:
    """Perplexity of a model or artifact, and its divergence from the reference if one is given.

    Args:
        artifact: a folder or hub id: a plain model, or any artifact that quantkit decodes.
        reference: the original model, or a folder that `save_reference` made; without it there is
            no KL.
        text: a file, folder or hub data set; by default a small text that ships with quantkit.
        protocol: how the text is cut and scored: `qk@1`, `long@1`, `wikitext2-2048`,
            `wikitext2-llamacpp` or `wikitext-lmeval`.
        sequence_length: tokens that the model reads at once, at most its context; the protocol's
            own by default.
        windows: how many are scored at most; the protocol's own number by default.
        save_reference: a folder to make that later evaluations take as their `reference`.
        reference_form: "hidden" (exact) or "topk" (small, and holds no weights).
        tasks: names that lm-eval knows, or .yaml files of yours, answered by both models.
        gates: limits on the figures, such as "kl.mean <= 0.05", beside those of the recipe that
            made the artifact; their outcomes are in the result.
        baseline: the result of an earlier run; what got worse is among the gates that failed.
        allow_overlap: whether text that the artifact was calibrated on is scored all the same.
        trust_remote_code: whether code of the model's folder may run.
        report: is told how far the work is.
    """
    from quantkit.core.gate import parse_gate
    from quantkit.eval.baseline import read_baseline
    from quantkit.eval.calibrated import screen_by_manifest
    from quantkit.eval.compare import compare
    from quantkit.eval.gates import engine_verdicts, judge, recipe_gates
    from quantkit.eval.machine import machine
    from quantkit.eval.subject import read_manifest
    from quantkit.eval.text import TextChoice

    limits = [parse_gate(gate) for gate in gates]
    old = read_baseline(Path(baseline)) if baseline else None
    source = resolve(artifact, trust_remote_code=trust_remote_code)
    manifest = read_manifest(source.folder)
    own, undecided = recipe_gates(manifest)
    original = resolve(reference, trust_remote_code=trust_remote_code) if reference else None
    answered = _answer(source, original, tasks, trust_remote_code, report) if tasks else []
    screen = screen_by_manifest(
        source.folder, allow=allow_overlap, trust_remote_code=trust_remote_code
    )
    found = compare(
        source,
        original,
        TextChoice(text, protocol, sequence_length, windows),
        keep=(Path(save_reference), reference_form) if save_reference else None,
        screen=screen,
        trust_remote_code=trust_remote_code,
        report=report,
    )
    stated = {
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "tasks": answered,
        "engines": engine_verdicts(manifest.get("engines")),
        "environment": {**found.environment, **machine()},
        "undecided": undecided,
    }
    found = found.model_copy(update=stated)
    return found.model_copy(update={"gates": list(judge((*own, *limits), found, old))})


def generate(
    artifact: str,
    prompt: str,
    *,
    max_new_tokens: int = 64,
    chat: bool = False,
    trust_remote_code: bool = False,
    emit: Callable[[str], None] | None = None,
) -> str:
    """The most likely continuation of `prompt`, computed with the artifact's decoded weights.

    `chat` puts the prompt into the model's chat template; `emit` is given each piece of text.
    """
    from quantkit.eval.generation import generate_text

    return generate_text(
        resolve(artifact, trust_remote_code=trust_remote_code).folder,
        prompt,
        max_new_tokens=max_new_tokens,
        chat=chat,
        trust_remote_code=trust_remote_code,
        emit=emit,
    )


def demo(output: str | Path | None = None, *, report: Report = silent) -> list[dict[str, Any]]:
    """Every method on the embedded model, each measured against the original: one row a recipe.

    `output` keeps the artifacts in that folder; otherwise they are thrown away.
    """
    from quantkit.calibration.tokens import load_tokenizer
    from quantkit.eval.compare import SMOKE_WINDOWS
    from quantkit.eval.demo import demo_recipes, original_row, row
    from quantkit.eval.session import evaluate_models, read_reference
    from quantkit.eval.text import TextChoice, read_text
    from quantkit.model.embedded_model import FOLDER, HELDOUT
    from quantkit.model.open import open_model

    recipes = demo_recipes()
    tokenizer = load_tokenizer(FOLDER)
    text = read_text(TextChoice(str(HELDOUT), windows=SMOKE_WINDOWS), tokenizer)
    reference = read_reference(open_model(FOLDER), text)
    size = sum(path.stat().st_size for path in FOLDER.glob("*.safetensors"))
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as temporary:
        base = Path(output or temporary)
        base.mkdir(parents=True, exist_ok=True)
        for done, (name, recipe) in enumerate(recipes.items()):
            report(Progress("demo", done, len(recipes), name))
            folder = base / name.replace(" ", "-")
            result = quantize(str(FOLDER), folder, recipe=recipe, evaluate=False)
            figures = evaluate_models(open_model(folder), text, reference)
            if not rows:
                rows.append(original_row(size, figures))
            rows.append(
                row(name, result.bytes, result.bits_per_weight, figures, result.cost.seconds)
            )
        report(Progress("demo", len(recipes), len(recipes), "done"))
    return rows


def _answer(
    source: Source,
    original: Source | None,
    tasks: Sequence[str],
    trust: bool,  # noqa: FBT001 - passed on
    report: Report,
) -> list[Task]:
    """Tasks come before the text, so that an unknown one is told at once."""
    from quantkit.eval.reference_store import is_store
    from quantkit.eval.tasks import run_tasks

    if original is None or is_store(original.folder):
        raise InputError(
            "tasks compare the answers of two models",
            why="a saved reference holds no model",
            hint="--reference MODEL",
        )
    folders = source.folder, original.folder
    return run_tasks(*folders, tasks, trust_remote_code=trust, report=report)


def _score(
    folder: Path,
    source: Source,
    calibration: torch.Tensor | None,
    trust: bool,  # noqa: FBT001 - passed on
    report: Report,
) -> EvalResult:
    """The written weights against the original, on text that was not calibrated on."""
    from quantkit.eval.calibrated import screen_by_tokens
    from quantkit.eval.compare import SMOKE_WINDOWS, compare
    from quantkit.eval.text import TextChoice

    return compare(
        Source(folder),
        source,
        TextChoice(windows=SMOKE_WINDOWS),
        screen=screen_by_tokens(calibration, source.folder, trust_remote_code=trust),
        trust_remote_code=trust,
        report=report,
    )


def _judged(
    manifest: Manifest,
    scored: EvalResult | None,
    recipe: Recipe,
    baseline: EvalResult | None,
    name: str,
) -> EvalResult:
    """The result with what the manifest knows of the artifact, and the recipe's gates judged."""
    from quantkit.eval.gates import SMOKE, engine_verdicts, judge, unscored
    from quantkit.eval.results import Subject

    found = scored or unscored(Subject(name=name))
    artifact = found.artifact.model_copy(
        update={
            "name": name,
            "bytes": manifest.bytes,
            "bits_per_weight": manifest.bits_per_weight,
            "method": recipe.method,
            "scheme": ", ".join(sorted({str(module["scheme"]) for module in manifest.modules})),
            "format": manifest.format,
        }
    )
    engines = engine_verdicts(manifest.engines)
    decides = scored is not None and scored.protocol.text != SMOKE
    undecided = recipe.undecided if decides else "warn"  # no text here could have passed a gate
    stated = {"artifact": artifact, "engines": engines, "undecided": undecided}
    found = found.model_copy(update=stated)
    return found.model_copy(update={"gates": list(judge(recipe.gates, found, baseline))})


def _prepare(source: Source, recipe: Recipe | None, device: str, trust: bool) -> Prepared:  # noqa: FBT001 - passed on
    """The plan for the recipe and what the model's family adds to it."""
    from quantkit.model.open import open_model
    from quantkit.pipeline.prepare import prepare

    wanted = recipe or build_recipe()
    model = open_model(source.folder, trust_remote_code=trust, device=_device(device))
    family = load_family(model.config.model_type)
    if family is None:
        return prepare(model, wanted)
    prepared = prepare(model, replace(wanted, overrides=(*family.overrides, *wanted.overrides)))
    remarks = (*prepared.plan.remarks, *family.notes)
    return replace(prepared, plan=replace(prepared.plan, remarks=remarks))


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"no device `{name}`", why=why, hint="--device cpu") from error
    return name
