"""One function per verb: where the parts are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from quantkit.checkpoint.files import sha256
from quantkit.checkpoint.source import Source, resolve
from quantkit.checkpoint.writer import DEFAULT_SHARD_SIZE, ArtifactWriter, check_output
from quantkit.core.errors import InputError
from quantkit.core.manifest import FILE_NAME, Manifest, environment
from quantkit.core.progress import Progress, Report, silent
from quantkit.pipeline.doctor import Finding, doctor
from quantkit.pipeline.measure import Cost, peak_rss, stopwatch
from quantkit.recipes.loader import build_recipe, load_family
from quantkit.recipes.schema import document_of

if TYPE_CHECKING:
    from quantkit.calibration.tokens import Calibration
    from quantkit.core.plan import Plan
    from quantkit.core.recipe import Recipe
    from quantkit.eval.session import Evaluation, Reference
    from quantkit.eval.text import EvaluationText
    from quantkit.model.open import OpenModel
    from quantkit.pipeline.build import Built
    from quantkit.pipeline.prepare import Prepared

__all__ = ["Finding", "QuantizeResult", "demo", "doctor", "evaluate", "generate", "quantize"]

EVALUATION_WINDOWS = 16
"""Windows of 512 tokens that `quantize` and `eval` score unless told otherwise."""

DEMO_RECIPES = (
    ("rtn", ()),
    ("gptq", ()),
    ("gptq", ("scheme.bits=3",)),
    ("rtn", ("scheme.bits=3",)),
    ("gptq-asym", ()),
    ("awq", ()),
    ("nf4-double", ()),
    ("smoothquant", ()),
)


@dataclass(frozen=True)
class GateResult:
    """A gate of the recipe and how it went."""

    gate: str
    value: float | None
    passed: bool


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
            "modules": [dict(m) for m in self.modules],
            "evaluation": dict(self.evaluation) if self.evaluation else None,
            "gates": [asdict(g) for g in self.gates],
            "remarks": list(self.remarks),
        }


def quantize(
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
    watch = stopwatch()
    out = Path(output)
    check_output(out)
    source = resolve(model)
    prepared = _prepare(source, recipe or build_recipe(None), device, trust_remote_code)
    calibration = _calibrate(source.folder, prepared, trust_remote_code)
    from quantkit.pipeline.build import build
    from quantkit.pipeline.write import planned_tensors

    specs = planned_tensors(prepared.model, prepared.plan.schemes, prepared.format)
    with ArtifactWriter(out, specs, max_shard_size) as writer:
        ids = calibration.input_ids if calibration else None
        built = build(prepared, writer, ids, report, trust_remote_code=trust_remote_code)
        evaluation = (
            _score(source.folder, writer.folder, report, trust_remote_code) if evaluate else None
        )
        size = sum(spec.nbytes for spec in specs)
        manifest = _manifest(source, prepared, calibration, built, evaluation, size, watch())
        writer.write_json(FILE_NAME, manifest.to_dict())
        writer.write_bytes("README.md", _card(source, manifest).encode())
        writer.publish()
    return QuantizeResult(
        output=out,
        bytes=size,
        bits_per_weight=manifest.bits_per_weight,
        cost=watch(),
        recipe=manifest.recipe,
        modules=manifest.modules,
        evaluation=manifest.evaluation,
        gates=_gates(prepared.plan.recipe, manifest.evaluation),
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
    source = resolve(model)
    return _prepare(source, recipe or build_recipe(None), device, trust_remote_code).plan


def evaluate(
    artifact: str,
    *,
    reference: str | None = None,
    text: str | None = None,
    sequence_length: int = 512,
    windows: int | None = None,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> Evaluation:
    """Perplexity of a model or artifact, and its divergence from the reference if one is given.

    Args:
        artifact: a folder or hub id: a plain model, or any artifact that quantkit decodes.
        reference: the original model; without it there is no KL.
        text: a file, folder or hub data set; by default a small text that ships with quantkit.
        sequence_length: tokens in a window. windows: how many are scored (default 16).
        trust_remote_code: whether code of the model's folder may run.
        report: is told how far the work is.
    """
    from quantkit.eval.session import evaluate_models, read_reference
    from quantkit.model.open import open_model

    folder = resolve(artifact).folder
    original = resolve(reference).folder if reference else None
    count = windows or EVALUATION_WINDOWS
    chosen = _text(folder, text, sequence_length, count, trust_remote_code)
    found = None
    if original is not None:
        opened = open_model(original, trust_remote_code=trust_remote_code)
        found = read_reference(opened, chosen, _named("reference", report))
    opened = open_model(folder, trust_remote_code=trust_remote_code)
    return evaluate_models(opened, chosen, found, _named("evaluate", report))


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
        resolve(artifact).folder,
        prompt,
        max_new_tokens=max_new_tokens,
        chat=chat,
        trust_remote_code=trust_remote_code,
        emit=emit,
    )


def demo(output: str | Path | None = None, *, report: Report = silent) -> list[dict[str, Any]]:
    """Every method on the embedded model, each measured against the original: one row per recipe.

    `output` keeps the artifacts in a new folder; otherwise they are thrown away.
    """
    from quantkit.eval.session import evaluate_models, read_reference
    from quantkit.model.embedded_model import FOLDER, HELDOUT
    from quantkit.model.open import open_model

    text = _text(FOLDER, str(HELDOUT), 512, EVALUATION_WINDOWS, trust=False)
    reference = read_reference(open_model(FOLDER), text)
    rows = [_row("original", _size(FOLDER), 16.0, evaluate_models(open_model(FOLDER), text), 0.0)]
    with TemporaryDirectory() as temporary:
        base = Path(output) if output else Path(temporary)
        for done, (name, changes) in enumerate(DEMO_RECIPES):
            recipe = build_recipe(
                name, samples=16, sequence_length=512, settings=["scheme.group_size=64", *changes]
                if name not in ("smoothquant", "nf4-double")
                else changes,
            )
            label = "-".join([name, *(c.replace("scheme.bits=", "w") for c in changes)])
            report(Progress("demo", done, len(DEMO_RECIPES), label))
            result = quantize(str(FOLDER), base / label, recipe=recipe, evaluate=False)
            figures = evaluate_models(open_model(base / label), text, reference)
            rows.append(
                _row(label, result.bytes, result.bits_per_weight, figures, result.cost.seconds)
            )
        report(Progress("demo", len(DEMO_RECIPES), len(DEMO_RECIPES), "done"))
    return rows


def _row(
    name: str, size: int, bits: float, evaluation: Evaluation, seconds: float
) -> dict[str, Any]:
    found = evaluation.to_dict()
    kl = found.get("kl") or {}
    return {
        "recipe": name,
        "bytes": size,
        "bits_per_weight": bits,
        "perplexity": found["perplexity"]["value"],
        "perplexity_standard_error": found["perplexity"]["standard_error"],
        "kl_mean": kl.get("mean"),
        "kl_standard_error": kl.get("standard_error"),
        "top1_agreement": found.get("top1_agreement"),
        "seconds": seconds,
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _prepare(source: Source, recipe: Recipe, device: str, trust: bool) -> Prepared:  # noqa: FBT001 - passed on
    from dataclasses import replace

    from quantkit.model.open import open_model
    from quantkit.pipeline.prepare import prepare

    model = open_model(source.folder, trust_remote_code=trust, device=_device(device))
    family = load_family(model.config.model_type)
    if family is not None:
        recipe = replace(recipe, overrides=(*family.overrides, *recipe.overrides))
    prepared = prepare(model, recipe)
    if family is not None and family.notes:
        remarks = (*prepared.plan.remarks, *family.notes)
        prepared = replace(prepared, plan=replace(prepared.plan, remarks=remarks))
    return prepared


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


def _calibrate(folder: Path, prepared: Prepared, trust: bool) -> Calibration | None:  # noqa: FBT001 - passed on
    from quantkit.calibration.text import read_documents
    from quantkit.calibration.tokens import load_tokenizer, tokenize

    wanted = prepared.plan.recipe.calibration
    if wanted.samples == 0:
        return None
    tokenizer = load_tokenizer(folder, trust_remote_code=trust)
    length = min(wanted.sequence_length, _context(prepared.model))
    return tokenize(read_documents(wanted.text), tokenizer, wanted.samples, length, wanted.text)


def _context(model: OpenModel) -> int:
    """The longest sequence that the model was made for."""
    config = model.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or 1 << 30)


def _text(
    folder: Path, text: str | None, length: int, windows: int, trust: bool  # noqa: FBT001 - passed on
) -> EvaluationText:
    from quantkit.calibration.tokens import load_tokenizer
    from quantkit.eval.text import read_text

    tokenizer = load_tokenizer(folder, trust_remote_code=trust)
    return read_text(text, tokenizer, length, windows)


def _score(original: Path, written: Path, report: Report, trust: bool) -> Evaluation:  # noqa: FBT001 - passed on
    from quantkit.eval.session import evaluate_models, read_reference
    from quantkit.model.open import open_model

    model = open_model(original, trust_remote_code=trust)
    text = _text(original, None, min(512, _context(model)), EVALUATION_WINDOWS, trust)
    reference: Reference = read_reference(model, text, _named("reference", report))
    artifact = open_model(written, trust_remote_code=trust)
    return evaluate_models(artifact, text, reference, _named("evaluate", report))


def _named(stage: str, report: Report) -> Report:
    return lambda p: report(Progress(stage, p.done, p.total, p.detail, p.seconds_left))


def _manifest(
    source: Source,
    prepared: Prepared,
    calibration: Calibration | None,
    built: Built,
    evaluation: Evaluation | None,
    size: int,
    cost: Cost,
) -> Manifest:
    import math

    names = prepared.model.checkpoint.names
    weights = sum(math.prod(info.shape) for info in names.values())
    return Manifest(
        source={"id": source.id, "revision": source.revision, "files": _hashes(prepared.model)},
        recipe=document_of(prepared.plan.recipe),
        format=prepared.format.name,
        calibration=asdict(calibration.ledger) if calibration else None,
        modules=tuple(asdict(record) for record in built.modules),
        tensors=built.ledger,
        side_files=built.side_files,
        bytes=size,
        bits_per_weight=8 * size / weights,
        evaluation=evaluation.to_dict() if evaluation else None,
        remarks=prepared.plan.remarks,
        environment=environment(),
        measured=asdict(cost) | {"peak_rss_bytes": peak_rss()},
    )


def _hashes(model: OpenModel) -> dict[str, str]:
    """sha256 of the source's config and weight files."""
    checkpoint = model.checkpoint
    return {name: sha256(checkpoint.folder / name) for name in sorted(checkpoint.fingerprints)}


def _card(source: Source, manifest: Manifest) -> str:
    from quantkit.eval.card import model_card

    return model_card(manifest.to_dict(), source.folder)


def _gates(recipe: Recipe, evaluation: Mapping[str, Any] | None) -> tuple[GateResult, ...]:
    results = []
    for gate in recipe.gates:
        value: Any = evaluation
        for key in gate.metric.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        number = float(value) if isinstance(value, int | float) else None
        passed = number is not None and gate.holds(number)
        results.append(GateResult(f"{gate.metric} {gate.operator} {gate.limit:g}", number, passed))
    return tuple(results)
