"""One function per verb: where the parts are put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from quantkit.checkpoint.source import resolve
from quantkit.checkpoint.writer import DEFAULT_SHARD_SIZE, check_output
from quantkit.core import registry
from quantkit.core.progress import Report, silent
from quantkit.pipeline.doctor import Finding, doctor

if TYPE_CHECKING:
    from quantkit.core.plan import Plan
    from quantkit.core.recipe import CalibrationSpec, Recipe
    from quantkit.eval.produce import QuantizeResult
    from quantkit.eval.report.write import WrittenReport
    from quantkit.eval.results import EvalResult, SweepResult
    from quantkit.eval.sweep import Runner
    from quantkit.planning.forecast import Forecast
    from quantkit.planning.train import Training

PLANNED_RECIPES = ("smoothquant", "w8a16", "gptq", "nf4-double")
"""What `plan` shows of a model unless asked for something else."""

__all__ = [
    "Finding",
    "demo",
    "doctor",
    "dry_run",
    "evaluate",
    "fit",
    "generate",
    "plan",
    "quantize",
    "report",
    "sweep",
]


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
    from quantkit.eval.compare import smoke_score
    from quantkit.eval.produce import Order, produce
    from quantkit.eval.result_file import read_result
    from quantkit.eval.results import EvalResult
    from quantkit.pipeline.calibrate import calibrate
    from quantkit.pipeline.start import checked, start

    trust = trust_remote_code
    check_output(Path(output))
    old = read_result(Path(baseline), EvalResult) if baseline else None
    wanted, device = checked(recipe, device)
    source = resolve(model, trust_remote_code=trust)
    check_output(Path(output), source.folder)
    prepared = start(source.folder, wanted, device, trust_remote_code=trust)
    spec = prepared.plan.recipe.calibration
    calibration = calibrate(prepared.model, spec, trust_remote_code=trust)
    order = Order(source, prepared, calibration, Path(output), max_shard_size, trust)
    score = smoke_score(source, calibration, trust_remote_code=trust, report=report)
    return produce(order, score if evaluate else None, old, report)


def fit(  # noqa: PLR0913 - the public surface; each has a default that is right for most
    model: str,
    output: str | Path,
    *,
    size: int | str | None = None,
    gpu: str | None = None,
    context: int | None = None,
    batch: int = 1,
    tp: int = 1,
    engine: str = "vllm",
    bits: Sequence[int] = (4, 8),
    group_sizes: Sequence[int | None] = (32, 64, 128, None),
    calibration: CalibrationSpec | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
    report: Report = silent,
) -> QuantizeResult:
    """Choose bits part by part so that the weights fit; ship the best uniform recipe if as good.

    Args:
        model: a folder, or a hub id `org/name[@revision]`.
        output: the folder to make; it must not exist, or be empty.
        size: what the weight files may take together: bytes, or "5.5GB".
        gpu: or what has to hold the weights beside all else, as in `plan`.
        context: tokens of a sequence, as in `plan`.
        batch: how many sequences are served at once.
        tp: tensor-parallel ranks.
        engine: which engine has to load the result; it decides format and legal schemes.
        bits: widths to choose from; linears may also stay as they are.
        group_sizes: inputs that share a scale to choose from; None is a whole channel.
        calibration: text to quantize and to choose with; quantkit's own by default.
        device: "cpu", "cuda", "cuda:1", or "auto": the GPU if there is one.
        trust_remote_code: whether code of the model's folder may run.
        report: is told how far the work is.
    """
    from quantkit.eval import fit as fitting
    from quantkit.pipeline.start import device_of
    from quantkit.planning.room import Asked

    check_output(Path(output))
    schemes, device = fitting.schemes_of(bits, group_sizes), device_of(device)
    asked = Asked(engine, size, gpu, context, batch, tp).checked()
    source = resolve(model, trust_remote_code=trust_remote_code)
    check_output(Path(output), source.folder)
    wanted = fitting.want(source, Path(output), asked, schemes, calibration)
    return fitting.fit(replace(wanted, device=device, trust_remote_code=trust_remote_code), report)


def dry_run(
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
    from quantkit.pipeline.start import checked, start

    wanted, device = checked(recipe, device)
    source = resolve(model, trust_remote_code=trust_remote_code)
    return start(source.folder, wanted, device, trust_remote_code=trust_remote_code).plan


def plan(  # noqa: PLR0913 - the public surface; each has a default that is right for most
    model: str,
    *,
    gpu: str | None = None,
    context: int | None = None,
    batch: int = 1,
    engine: str = "vllm",
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    kv: Literal[16, 8] = 16,
    recipes: Sequence[Recipe] | None = None,
    settings: Mapping[str, str] | None = None,
    training: Training | None = None,
) -> Forecast:
    """What a model and its quantized builds weigh, and whether they fit a GPU; without torch.

    Only config.json and the headers of the weights are read, or fetched.

    Args:
        model: a folder, a config.json, or a hub id `org/name[@revision]`.
        gpu: a name (`4090`), `24GB@1008GB/s`, or `local`; without one only weights are told.
        context: tokens of a sequence; by default the model's own, at most 8192.
        batch: how many sequences are served at once.
        engine: "vllm", "sglang" or "transformers".
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        ep: expert-parallel ranks.
        kv: bits of an element of the KV cache.
        recipes: what to quantize with; by default one of each size.
        settings: of the engine, by the names of `planning.serving.Settings`.
        training: a training run to forecast instead, its tokens and sequences those given here.

    Raises:
        QuantkitError: what is asked is unknown, or no engine runs it.
    """
    from quantkit.planning.deploy import asked_load, named_place
    from quantkit.planning.forecast import forecast, require_alone, schooled
    from quantkit.planning.opened import open_model
    from quantkit.planning.parallel import Degrees

    place = named_place(gpu, engine, Degrees(tp, pp, ep), **settings or {}) if gpu else None
    planned = open_model(model)
    load = asked_load(planned.architecture, context, batch, kv)
    if training is not None:
        require_alone((tp, pp, ep, kv) != (1, 1, 1, 16), recipes, settings)
        return schooled(planned, training, place.gpu if place else None, load)
    asked = recipes is not None
    if recipes is None and not planned.quantized:
        from quantkit.recipes.loader import load_recipe

        recipes = [load_recipe(name) for name in PLANNED_RECIPES]
    return forecast(planned, recipes or (), place, load, asked=asked)


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
    triage: bool = False,
    speed: bool = False,
    engine: Literal["vllm"] | None = None,
    device: str = "auto",
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
        triage: whether to find, on a few windows, which blocks and linears carry the divergence.
        speed: whether to time its quantized computation in this process, and count its memory.
        engine: an engine to time it in, under concurrent requests to its server.
        device: where speed is measured: "cpu", "cuda", "cuda:1", or "auto": the GPU if there is
            one. Quality is computed on the CPU.
        trust_remote_code: whether code of the model's folder may run.
        report: is told how far the work is.
    """
    from quantkit.core.gate import parse_gate
    from quantkit.eval.measurement import Measurement, measure
    from quantkit.eval.result_file import read_result
    from quantkit.eval.results import EvalResult
    from quantkit.eval.text import TextChoice
    from quantkit.pipeline.start import device_of

    wanted = Measurement(
        choice=TextChoice(text, protocol, sequence_length, windows),
        keep=(Path(save_reference), reference_form) if save_reference else None,
        tasks=tuple(tasks),
        gates=tuple(parse_gate(gate) for gate in gates),
        baseline=read_result(Path(baseline), EvalResult) if baseline else None,
        allow_overlap=allow_overlap,
        triage=triage,
        speed=speed,
        engine=engine,
        device=device_of(device),
        trust_remote_code=trust_remote_code,
    )
    source = resolve(artifact, trust_remote_code=trust_remote_code)
    original = resolve(reference, trust_remote_code=trust_remote_code) if reference else None
    return measure(source, original, wanted, report)


def sweep(  # noqa: PLR0913 - the public surface; each has a default that is right for most
    model: str,
    output: str | Path,
    recipes: Sequence[Recipe],
    *,
    text: str | None = None,
    protocol: str = "qk@1",
    windows: int | None = None,
    device: str = "auto",
    runner: str = "local",
    trust_remote_code: bool = False,
    report: Report = silent,
) -> SweepResult:
    """Run every recipe on one model; what is done stays done when the sweep is killed.

    Args:
        model: a folder, or a hub id `org/name[@revision]`.
        output: the sweep's folder: a new one, or one whose sweep of this model goes on.
        recipes: what to run; those that fail are recorded and passed over.
        text: what is scored, as in `evaluate`; the original is computed once for all recipes.
        protocol: how it is cut and scored.
        windows: how many windows at most.
        device: "cpu", "cuda", "cuda:1", or "auto": the GPU if there is one.
        runner: "local", or "ray": on a Ray cluster whose machines all see model and output.
        trust_remote_code: whether code of the model's folder may run.
        report: is told how far the work is.
    """
    from quantkit.eval.sweep import claimed, jobs_of, resumed, run_sweep
    from quantkit.eval.sweep_run import SweepInputs, begin, run_job
    from quantkit.eval.text import TextChoice
    from quantkit.pipeline.start import device_of

    run: Runner = registry.load("eval.runners", runner, "RUNNER")
    source = resolve(model, trust_remote_code=trust_remote_code)
    name = source.id or source.folder.resolve().name
    jobs = jobs_of(f"{name}@{source.revision}" if source.revision else name, recipes)
    choice = TextChoice(text, protocol, windows=windows)
    folder = Path(output).resolve()
    calibrations = tuple(dict.fromkeys(recipe.calibration for recipe in recipes))
    if runner == "local":
        device_of(device)  # elsewhere it is another machine's
    inputs = SweepInputs(source, folder, choice, calibrations, device, trust_remote_code)
    with claimed(folder):
        fresh, jobs = begin(inputs, jobs, report)
        ready = resumed(folder, fresh)
        execute = partial(run_job, inputs, report=report)
        return run_sweep(folder, jobs, ready, execute, run, report)


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


def demo(
    output: str | Path | None = None,
    *,
    page: str | Path = "quantkit-demo.html",
    report: Report = silent,
) -> SweepResult:
    """Every method on the embedded model: a sweep whose report is written to `page`.

    `output` keeps the sweep and its artifacts in that folder; otherwise they are thrown away.
    """
    from quantkit.eval.demo import WINDOWS, demo_recipes
    from quantkit.eval.report.write import write_report
    from quantkit.model.embedded_model import FOLDER, HELDOUT

    with TemporaryDirectory() as temporary:
        folder = Path(output or temporary)
        text = str(HELDOUT)
        swept = sweep(
            str(FOLDER), folder, demo_recipes(), text=text, windows=WINDOWS, report=report
        )
        write_report([folder], Path(page))
    return swept


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
