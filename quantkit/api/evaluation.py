"""The verbs that run an artifact, measure it, and set results side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from quantkit.checkpoint.source import resolve
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
    device: str = "auto",
    trust_remote_code: bool = False,
    report: Report = silent,
) -> EvalResult:
    """Perplexity of a model or artifact, and its divergence from the reference if one is given.

    Example:
        >>> found = quantkit.evaluate("out", reference="model", windows=2)
        >>> found.kl.mean < 0.1, found.kl_level.level
        (True, 'small')

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
        report: called with a `Progress` after each step.
    """
    from quantkit.core.gate import parse_gate
    from quantkit.eval.text import TextChoice
    from quantkit.pipeline.start import device_of
    from quantkit.results.file import read_result
    from quantkit.results.schema import EvalResult
    from quantkit.runs.evaluation import EvaluationOptions, evaluate_artifact

    options = EvaluationOptions(
        choice=TextChoice(text, protocol, sequence_length, windows),
        keep=(Path(save_reference), reference_form) if save_reference else None,
        tasks=tuple(tasks),
        gates=tuple(parse_gate(gate) for gate in gates),
        baseline=read_result(Path(baseline), EvalResult) if baseline else None,
        allow_overlap=allow_overlap,
        triage=triage,
        speed=speed,
        engine=engine,
    )
    session = Session(device_of(device), trust_remote_code, report)
    source = resolve(artifact, trust_remote_code=trust_remote_code)
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
    """Run every recipe on one model; what is done stays done when the sweep is killed.

    Example:
        >>> swept = quantkit.sweep("model", "runs", [quantkit.build_recipe("nf4")], windows=2)
        >>> [(run.label, run.status) for run in swept.runs]
        [('original', 'done'), ('nf4 NF4 g64', 'done')]

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
        report: called with a `Progress` after each step.
    """
    from quantkit.eval.text import TextChoice
    from quantkit.pipeline.start import device_of
    from quantkit.runs.sweep.job import SweepInputs, begin, run_job
    from quantkit.runs.sweep.journal import claimed, jobs_of, resumed, run_sweep

    run: Runner = registry.load("runs.sweep.runners", runner, "RUNNER")
    source = resolve(model, trust_remote_code=trust_remote_code)
    name = source.id or source.folder.resolve().name
    jobs = jobs_of(f"{name}@{source.revision}" if source.revision else name, recipes)
    choice = TextChoice(text, protocol, windows=windows)
    folder = Path(output).resolve()
    calibrations = tuple(dict.fromkeys(recipe.calibration for recipe in recipes))
    here = device_of(device) if runner == "local" else device  # elsewhere another machine's
    session = Session(here, trust_remote_code, report)
    inputs = SweepInputs(source, folder, choice, calibrations)
    with claimed(folder):
        fresh, jobs = begin(inputs, jobs, session)
        ready = resumed(folder, fresh)
        execute = partial(run_job, inputs, session)
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

    Example:
        >>> text = quantkit.generate("out", "Once upon a time", max_new_tokens=4)
        >>> len(text) > 0
        True

    `chat` puts the prompt into the model's chat template; `emit` is given each piece of text.
    """
    from quantkit.eval.generation import generate_text

    return generate_text(
        resolve(artifact, trust_remote_code=trust_remote_code).folder,
        prompt,
        Session(trust_remote_code=trust_remote_code),
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
    """Every method on the embedded model: a sweep whose report is written to `page`.

    Example:
        >>> swept = quantkit.demo(page="demo.html")  # doctest: +SKIP
        >>> min(run.summary.kl_mean for run in swept.runs[1:]) < 0.001  # doctest: +SKIP
        True

    `output` keeps the sweep and its artifacts in that folder; otherwise they are thrown away.
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
    """Results side by side as a page, a table or JSON, by the ending of `output`.

    Example:
        >>> written = quantkit.report(["runs"], "report.html")
        >>> written.output.name
        'report.html'

    Args:
        folders: sweeps, folders with an `eval.json`, or artifacts, all of one model and protocol.
        output: a file `.html`, `.md`, `.csv` or `.json`; one that exists is replaced.

    Raises:
        QuantkitError: no results are there, or such that cannot be compared.
    """
    from quantkit.eval.report.write import write_report

    return write_report([Path(folder) for folder in folders], Path(output))
