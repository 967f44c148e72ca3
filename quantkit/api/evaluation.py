"""The functions that run and evaluate artifacts and compare results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from quantkit.api.loading import load_torch
from quantkit.api.sessions import session_on
from quantkit.checkpoint.destination import require_outside
from quantkit.checkpoint.source import check_name, resolve
from quantkit.checkpoint.sums import require_sums
from quantkit.core import registry
from quantkit.core.progress import Report, silent
from quantkit.core.session import Session

if TYPE_CHECKING:
    from quantkit.core.recipe import Recipe
    from quantkit.eval.report.write import WrittenReport
    from quantkit.results.schema import EvalResult, SweepResult
    from quantkit.runs.sweep.journal import Runner


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
    kv_cache: Literal["stored", "16-bit", "fp8"] = "stored",
    device: str = "auto",
    max_ram: int | str | None = None,
    max_vram: int | str | None = None,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> EvalResult:
    """Evaluate a model or artifact: perplexity and, with a reference, KL divergence from it.

    Example:
        >>> found = quantkit.evaluate("out", reference="model", windows=2)
        >>> found.kl.mean < 0.1, found.kl_level.level
        (True, 'small')

    Args:
        artifact: a folder or hub id: a plain model, or an artifact that quantkit decodes.
        reference: the original model, or a folder that `save_reference` made; needed for KL.
        text: a file, folder or hub dataset; by default the small bundled text.
        protocol: how the text is cut and scored: `qk@1`, `long@1`, `wikitext2-2048`,
            `wikitext2-llamacpp` or `wikitext-lmeval`.
        sequence_length: tokens of a window, at most the model's context; by default the protocol's.
        windows: most windows to score; by default the protocol's number.
        save_reference: a folder to make that later evaluations use as their `reference`.
        reference_form: "hidden" (exact) or "topk" (small, contains no weights).
        tasks: lm-eval task names or .yaml task files, answered by both models.
        gates: limits on figures, such as "kl.mean <= 0.05", in addition to those of the artifact's
            recipe; the result contains their outcomes.
        baseline: the result of an earlier run; a regression is reported as a failed gate.
        allow_overlap: whether to score text that the artifact was calibrated on.
        triage: whether to measure, on a few windows, the KL of each block and kind of linear.
        speed: whether to measure speed and memory in this process.
        engine: an engine whose server is measured under concurrent requests.
        kv_cache: keys and values as the file states, in 16 bits, or in fp8 by its scales or 1.
        device: "cpu", "cuda", "cuda:1", or "auto": the GPU if there is one.
        max_ram: most memory of an evaluation on the CPU: bytes or "12GiB"; as in `quantize`.
        max_vram: the same of a GPU.
        trust_remote_code: whether code in the model's folder may run.
        report: called with a `Progress` after each step.
    """
    from quantkit.core.gate import parse_gate

    gated = tuple(parse_gate(gate) for gate in gates)
    for name in filter(None, (artifact, reference)):
        check_name(name)
    load_torch(report)
    from quantkit.eval.text import TextChoice
    from quantkit.results.file import read_result
    from quantkit.results.schema import EvalResult
    from quantkit.runs.evaluation import EvaluationOptions, evaluate_artifact

    options = EvaluationOptions(
        choice=TextChoice(text, protocol, sequence_length, windows),
        keep=(Path(save_reference), reference_form) if save_reference else None,
        tasks=tuple(tasks),
        gates=gated,
        baseline=read_result(Path(baseline), EvalResult) if baseline else None,
        allow_overlap=allow_overlap,
        triage=triage,
        speed=speed,
        engine=engine,
        kv_cache=kv_cache,
    )
    session = session_on(device, max_ram, max_vram, report, trust_remote_code=trust_remote_code)
    source = resolve(artifact, trust_remote_code=trust_remote_code)
    require_sums(source.folder)
    original = resolve(reference, trust_remote_code=trust_remote_code) if reference else None
    return evaluate_artifact(source, original, options, session)


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
    """Run every recipe on one model; an interrupted sweep resumes with the unfinished runs.

    Example:
        >>> swept = quantkit.sweep("model", "runs", [quantkit.build_recipe("nf4")], windows=2)
        >>> [(run.label, run.status) for run in swept.runs]
        [('original', 'done'), ('nf4 NF4 g64', 'done')]

    Args:
        model: a folder, or a hub id `org/name[@revision]`.
        output: the sweep's folder: a new one, or that of a sweep of this model to resume.
        recipes: the recipes to run; failed ones are recorded and skipped.
        text: the evaluation text, as in `evaluate`; the original is evaluated once.
        protocol: how the text is cut and scored.
        windows: most windows to score.
        device: "cpu", "cuda", "cuda:1", or "auto": the GPU if there is one.
        runner: "local", or "ray": a Ray cluster whose machines share the model and the output.
        trust_remote_code: whether code in the model's folder may run.
        report: called with a `Progress` after each step.
    """
    check_name(model)
    run: Runner = registry.load("runs.sweep.runners", runner, "RUNNER")
    load_torch(report)
    from quantkit.eval.text import TextChoice
    from quantkit.pipeline.start import device_of
    from quantkit.runs.sweep.job import SweepInputs, begin, run_job
    from quantkit.runs.sweep.journal import claimed, jobs_of, resumed, run_sweep

    source = resolve(model, trust_remote_code=trust_remote_code)
    name = source.id or source.folder.resolve().name
    jobs = jobs_of(f"{name}@{source.revision}" if source.revision else name, recipes)
    choice = TextChoice(text, protocol, windows=windows)
    folder = Path(output).resolve()
    require_outside(folder, source.folder, "sweep")
    calibrations = tuple(dict.fromkeys(recipe.calibration for recipe in recipes))
    here = device_of(device) if runner == "local" else device  # else each machine resolves it
    session = Session(here, trust_remote_code, report)
    inputs = SweepInputs(source, folder, choice, calibrations)
    with claimed(folder):
        fresh, jobs = begin(inputs, jobs, session)
        ready = resumed(folder, fresh)
        # a console cannot go to another process
        worker = session if runner == "local" else replace(session, report=silent)
        execute = partial(run_job, inputs, worker)
        return run_sweep(folder, jobs, ready, execute, run, report)


def generate(  # noqa: PLR0913 - the public surface; each has a default that is right for most
    artifact: str,
    prompt: str,
    *,
    max_new_tokens: int = 64,
    chat: bool = False,
    device: str = "auto",
    trust_remote_code: bool = False,
    emit: Callable[[str], None] | None = None,
    report: Report = silent,
) -> str:
    """The most likely continuation of `prompt`, computed with the artifact's decoded weights.

    Example:
        >>> text = quantkit.generate("out", "Once upon a time", max_new_tokens=4)
        >>> len(text) > 0
        True

    `chat` applies the model's chat template; `emit` is called with each piece of text; `device` is
    "cpu", "cuda", "cuda:1", or "auto": the GPU if there is one.
    """
    check_name(artifact)
    load_torch(report)
    from quantkit.eval.generation import generate_text
    from quantkit.pipeline.start import device_of

    folder = resolve(artifact, trust_remote_code=trust_remote_code).folder
    require_sums(folder)
    return generate_text(
        folder,
        prompt,
        Session(device_of(device), trust_remote_code),
        max_new_tokens=max_new_tokens,
        chat=chat,
        emit=emit,
    )


def demo(
    output: str | Path | None = None,
    *,
    page: str | Path = "quantkit-demo.html",
    report: Report = silent,
) -> SweepResult:
    """Run a sweep of every method on the embedded model, and write its report to `page`.

    Example:
        >>> swept = quantkit.demo(page="demo.html")  # doctest: +SKIP
        >>> min(run.summary.kl_mean for run in swept.runs[1:]) < 0.001  # doctest: +SKIP
        True

    `output`: a folder for the sweep and its artifacts; by default they are deleted.
    """
    from quantkit.eval.report.write import write_report
    from quantkit.model.embedded_model import FOLDER, HELDOUT
    from quantkit.runs.demo import WINDOWS, demo_recipes

    with TemporaryDirectory() as temporary:
        folder = Path(output or temporary)
        text = str(HELDOUT)
        swept = sweep(
            str(FOLDER), folder, demo_recipes(), text=text, windows=WINDOWS, report=report
        )
        write_report([folder], Path(page))
    return swept


def report(folders: Sequence[str | Path], output: str | Path = "report.html") -> WrittenReport:
    """Compare results as a page, a table or JSON; the suffix of `output` decides.

    Example:
        >>> written = quantkit.report(["runs"], "report.html")
        >>> written.output.name
        'report.html'

    Args:
        folders: sweeps, folders with an `eval.json`, or artifacts, all of one model and protocol.
        output: a file `.html`, `.md`, `.csv` or `.json`; an existing one is replaced.

    Raises:
        QuantkitError: there are no results, or they cannot be compared.
    """
    from quantkit.eval.report.write import write_report

    return write_report([Path(folder) for folder in folders], Path(output))
