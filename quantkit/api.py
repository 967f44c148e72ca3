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
    from quantkit.core.plan import Plan
    from quantkit.core.recipe import Recipe
    from quantkit.eval.gates import GateResult
    from quantkit.eval.report.write import WrittenReport
    from quantkit.eval.results import EvalResult
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
    "report",
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
    gates: tuple[GateResult, ...]
    remarks: tuple[str, ...]

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
            "gates": [asdict(gate) for gate in self.gates],
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
        trust_remote_code: whether code of the model's folder may run.
        report: is told how far the work is.

    Raises:
        QuantkitError: with exit code, reason and remedy; OUT is then untouched.
    """
    from quantkit.eval.card import model_card
    from quantkit.eval.compare import SMOKE_WINDOWS, compare
    from quantkit.eval.gates import judge
    from quantkit.eval.report.load import study_of_manifest
    from quantkit.eval.report.page import render
    from quantkit.eval.text import TextChoice
    from quantkit.pipeline.build import build
    from quantkit.pipeline.calibrate import calibrate
    from quantkit.pipeline.manifest import manifest_of
    from quantkit.pipeline.write import planned_tensors

    watch = stopwatch()
    check_output(Path(output))
    source = resolve(model, trust_remote_code=trust_remote_code)
    prepared = _prepare(source, recipe, device, trust_remote_code)
    calibration = calibrate(prepared, trust_remote_code=trust_remote_code)
    specs = planned_tensors(prepared.model, prepared.plan.schemes, prepared.format)
    with ArtifactWriter(Path(output), specs, max_shard_size) as writer:
        ids = calibration.input_ids if calibration else None
        built = build(prepared, writer, ids, report, trust_remote_code=trust_remote_code)
        scored = None
        if evaluate:
            choice, trust = TextChoice(windows=SMOKE_WINDOWS), trust_remote_code
            written = Source(writer.folder)
            found = compare(written, source, choice, trust_remote_code=trust, report=report)
            scored = found.to_dict()
        document = document_of(prepared.plan.recipe)
        manifest = manifest_of(source, prepared, document, calibration, built, scored, watch())
        writer.write_json(FILE_NAME, manifest.to_dict())
        writer.write_bytes("README.md", model_card(manifest.to_dict(), source.folder).encode())
        # the page says nothing that two runs differ in: neither seconds nor the folder's name
        timeless = {**manifest.to_dict(), "measured": {}}
        if (study := study_of_manifest(timeless, document["name"])) is not None:
            writer.write_bytes("report.html", render(study).encode())
        writer.publish()
    return QuantizeResult(
        output=Path(output),
        bytes=manifest.bytes,
        bits_per_weight=manifest.bits_per_weight,
        cost=watch(),
        recipe=document,
        modules=manifest.modules,
        evaluation=scored,
        gates=judge(prepared.plan.recipe.gates, scored),
        remarks=manifest.remarks,
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
        trust_remote_code: whether code of the model's folder may run.
        report: is told how far the work is.
    """
    from quantkit.eval.compare import compare
    from quantkit.eval.text import TextChoice

    found = compare(
        resolve(artifact, trust_remote_code=trust_remote_code),
        resolve(reference, trust_remote_code=trust_remote_code) if reference else None,
        TextChoice(text, protocol, sequence_length, windows),
        keep=(Path(save_reference), reference_form) if save_reference else None,
        trust_remote_code=trust_remote_code,
        report=report,
    )
    return found.model_copy(update={"created_utc": datetime.now(UTC).isoformat(timespec="seconds")})


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


def report(folders: Sequence[str | Path], output: str | Path = "report.html") -> WrittenReport:
    """Results side by side as a page, a table or JSON, by the ending of `output`.

    Args:
        folders: sweeps, folders with an `eval.json`, or artifacts, all of one model and protocol.
        output: a file `.html`, `.md`, `.csv` or `.json`; one that exists is replaced.

    Raises:
        QuantkitError: no results are there, or such that cannot be compared.
    """
    from quantkit.eval.report.write import write_report

    return write_report([Path(folder) for folder in folders], Path(output))


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
