"""The functions that make an artifact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantkit.api.asking import absolute, asked
from quantkit.api.loading import load_torch
from quantkit.api.sessions import session_on
from quantkit.checkpoint.claim import check_output, discard, require_free
from quantkit.checkpoint.journal import unfinished
from quantkit.checkpoint.shards import DEFAULT_SHARD_SIZE
from quantkit.checkpoint.source import check_name, resolve
from quantkit.core.errors import InputError, RefusedError, ResourceError
from quantkit.core.manifest import FILE_NAME
from quantkit.core.progress import Report, silent
from quantkit.pipeline.measure import stopwatch

if TYPE_CHECKING:
    from quantkit.core.plan import Plan
    from quantkit.core.recipe import CalibrationSpec, Recipe
    from quantkit.runs.produce import QuantizeResult


def quantize(  # noqa: PLR0913 - the public surface; each has a default that is right for most
    model: str,
    output: str | Path,
    *,
    recipe: Recipe | None = None,
    device: str = "auto",
    devices: str | None = None,
    max_ram: int | str | None = None,
    max_vram: int | str | None = None,
    max_shard_size: int = DEFAULT_SHARD_SIZE,
    evaluate: bool = True,
    baseline: str | Path | None = None,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> QuantizeResult:
    """Calibrate, quantize, write, verify and evaluate a model.

    The output folder appears complete or not at all; a killed run is gone on with.

    Example:
        >>> recipe = quantkit.build_recipe("gptq", bits=4, samples=4)
        >>> result = quantkit.quantize("model", "out", recipe=recipe)
        >>> result.output.name, result.quantized_bits_per_weight < 4.5
        ('out', True)

    Args:
        model: a folder, or a hub id `org/name[@revision]`.
        output: the folder to make; it must be missing or empty.
        recipe: the recipe; `gptq` by default.
        device: "cpu", "cuda", "cuda:1", or "auto": the GPU if there is one.
        devices: several in place of one, "0,1" or "all": a process for each, and the bytes of one.
            Scripts that name several need `if __name__ == "__main__":`, as multiprocessing does.
            Under torchrun all processes call this function, and all but the first end in it.
        max_ram: most memory of a run on the CPU, in bytes or as "12GiB", its evaluation included.
            Forwards are then replayed where that needs less, and hidden states wait in a file, with
            the same bytes; what does not fit is refused at once.
        max_vram: the same of each GPU.
        max_shard_size: largest size of a weight file, in bytes.
        evaluate: whether to measure perplexity and KL against the original.
        baseline: the result of an earlier run; a regression is reported as a failed gate.
        trust_remote_code: whether code in the model's folder may run.
        report: called with a `Progress` after each step.

    Raises:
        QuantkitError: with exit code, reason and remedy; the output is then unchanged.
    """
    watch, target = stopwatch(), Path(output)
    require_free(target)
    check_name(model)
    if devices and device != "auto":
        raise InputError("device and devices are both given", hint="--devices alone")
    load_torch(report)
    from quantkit.eval.compare import smoke_score
    from quantkit.pipeline.start import checked
    from quantkit.results.file import read_result
    from quantkit.results.schema import EvalResult
    from quantkit.runs.produce import Order, assist_with, produce, ready
    from quantkit.runs.ranks import devices_of, ranks_of

    old = read_result(Path(baseline), EvalResult) if baseline else None
    wanted, several = checked(recipe), devices_of(devices) if devices else []
    place, trust = several[0] if several else device, trust_remote_code
    here = session_on(place, max_ram, max_vram, report, trust_remote_code=trust)
    source = resolve(model, trust_remote_code=trust)
    check_output(target, source.folder)
    with ranks_of(here, several, partial(assist_with, source, wanted)) as session:
        original, prepared, calibration = ready(source, wanted, session)
        where = {"device": device, "devices": devices, "max_ram": max_ram, "max_vram": max_vram}
        how = {"max_shard_size": max_shard_size, "evaluate": evaluate, "baseline": baseline}
        command = asked("quantize", source, wanted, session, where | how)
        order = Order(original, prepared, calibration, target, max_shard_size, command, evaluate)
        score = smoke_score(original, calibration, report) if evaluate else None
        result = produce(order, score, old, session)
    return replace(result, cost=watch())  # with what comes before the run, imports included


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
    bits: Sequence[int] = (2, 3, 4, 5, 6, 7, 8),
    group_sizes: Sequence[int | None] = (32, 64, 128, None),
    grids: Sequence[str] = ("int", "nvfp4"),
    calibration: CalibrationSpec | None = None,
    device: str = "auto",
    max_ram: int | str | None = None,
    max_vram: int | str | None = None,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> QuantizeResult:
    """Choose bits for each group of linears so that the weights fit a size or a GPU.

    If the best uniform recipe is as good, it is made instead.

    Example:
        >>> result = quantkit.fit("model", "fitted", gpu="4090", context=32768)  # doctest: +SKIP
        >>> result.evaluation.fit.shipped  # doctest: +SKIP
        'mixed'

    Args:
        model: a folder, or a hub id `org/name[@revision]`.
        output: the folder to make; it must be missing or empty.
        size: total size of the weight files: bytes, or "5.5GB".
        gpu: instead of `size`, the GPU that serves the model, as in `plan`.
        context: tokens of a sequence, as in `plan`.
        batch: number of concurrent sequences.
        tp: tensor-parallel ranks.
        engine: the engine that loads the result; it determines format and legal schemes.
        bits: bit widths to choose from; linears may also stay unquantized.
        group_sizes: group sizes of integers to choose from; None is a whole channel.
        grids: grids to choose from: int, fp8, mxfp8, mxfp4, nvfp4.
        calibration: text for measuring and quantizing; the bundled text by default.
        device: "cpu", "cuda", "cuda:1", or "auto": the GPU if there is one.
        max_ram: most memory of a run on the CPU, as in `quantize`.
        max_vram: the same of a GPU.
        trust_remote_code: whether code in the model's folder may run.
        report: called with a `Progress` after each step.
    """
    from quantkit.planning.serve.room import Budget
    from quantkit.runs.fit.builds import build_folders
    from quantkit.runs.fit.schemes import schemes_of

    check_output(Path(output))
    for each in build_folders(Path(output)):
        require_free(each)
    schemes = schemes_of(bits, group_sizes, grids)
    budget = Budget(engine, size, gpu, context, batch, tp).checked()
    check_name(model)
    load_torch(report)
    from quantkit.pipeline.opening import open_folder
    from quantkit.runs.fit import choose as fitting

    trust = trust_remote_code
    session = session_on(device, max_ram, max_vram, report, trust_remote_code=trust)
    source = resolve(model, trust_remote_code=trust)
    check_output(Path(output), source.folder)
    original = open_folder(source, session)
    wanted = fitting.want(original, Path(output), budget, schemes, calibration)
    place = {"gpu": gpu, "context": context, "batch": batch, "tp": tp, "engine": engine}
    choice = {"bits": bits, "group_sizes": group_sizes, "grids": grids, "device": device}
    calibrated = None if calibration is None else asdict(absolute(calibration))
    bounds = {"max_ram": max_ram, "max_vram": max_vram}
    how = {"size": size, "calibration": calibrated, **place, **choice, **bounds}
    command = asked("fit", source, None, session, how)
    return fitting.fit(replace(wanted, command=command), session)


def resume(output: str | Path, *, report: Report = silent) -> QuantizeResult | None:
    """Go on with the `quantize` or `fit` that was to make `output`, to the same bytes.

    Example:
        >>> quantkit.resume("out")  # complete: None

    The run's journal beside the output has all that it was asked for with. Returns None if the
    output is complete; what a kill left beside it is then removed.

    Raises:
        InputError: there is no such run.
        RefusedError: it trusts code in the model's folder, which only its own command says.
        QuantkitError: as `quantize` and `fit`.
    """
    from quantkit.runs.fit.builds import build_folders

    folder = Path(output)
    builds = [folder, *build_folders(folder)]
    if (folder / FILE_NAME).is_file():
        for each in builds:
            discard(each)
        return None
    command = next((found[0] for each in builds if (found := unfinished(each))), None)
    if not command:
        raise InputError(
            f"`{folder}` has no unfinished run",
            why=f"there is no journal of one at `{folder}.journal`",
            hint="quantkit quantize MODEL -o OUT",
        )
    if command["trust_remote_code"]:
        raise RefusedError(
            "the run trusts code in the model's folder, which a journal cannot say",
            hint="the same command again, with --trust-remote-code",
        )
    return _again(dict(command), folder, report)


def _again(command: dict[str, Any], output: Path, report: Report) -> QuantizeResult:
    from quantkit.core.recipe import CalibrationSpec
    from quantkit.recipes.document import Document
    from quantkit.recipes.schema import recipe_of

    verb, recipe = command.pop("verb"), command.pop("recipe")
    if verb == "quantize":
        wanted = recipe_of(Document(recipe, {}))
        return quantize(output=output, recipe=wanted, report=report, **command)
    found = command.pop("calibration")
    calibration = CalibrationSpec(**found) if found else None
    return fit(output=output, calibration=calibration, report=report, **command)


def dry_run(  # noqa: PLR0913 - as `quantize`
    model: str,
    *,
    recipe: Recipe | None = None,
    device: str = "auto",
    max_ram: int | str | None = None,
    max_vram: int | str | None = None,
    max_shard_size: int = DEFAULT_SHARD_SIZE,
    evaluate: bool = True,
    trust_remote_code: bool = False,
    report: Report = silent,
) -> Plan:
    """The plan of `quantize`: the scheme of each linear, files, memory and time (`--dry-run`).

    Insufficient memory is a remark of the plan, not raised; seconds are known if the machine was
    timed (`doctor(time=True)`).

    Example:
        >>> plan = quantkit.dry_run("model", recipe=quantkit.build_recipe("nf4"))
        >>> {scheme.label() for scheme in plan.schemes.values()}
        {'NF4 g64'}

    Raises:
        QuantkitError: as `quantize` would, before any work.
    """
    check_name(model)
    load_torch(report)
    from quantkit.eval.compare import smoke_windows
    from quantkit.pipeline.calibrate import calibrate
    from quantkit.pipeline.opening import open_folder
    from quantkit.pipeline.start import checked, start
    from quantkit.runs.ceiling import ceiling_of
    from quantkit.runs.forecast import plan_within, require_memory, what_fits
    from quantkit.runs.reading import with_evaluation

    wanted, trust = checked(recipe), trust_remote_code
    session = session_on(device, max_ram, max_vram, report, trust_remote_code=trust)
    source = resolve(model, trust_remote_code=trust)
    original = open_folder(source, session)
    prepared = start(original.model, wanted)
    calibration = calibrate(original, prepared.plan.recipe.calibration)
    windows = tuple(calibration.input_ids.shape) if calibration else (0, 0)
    ceiling = ceiling_of(prepared.model.device, session)
    plan = plan_within(ceiling, prepared, windows, max_shard_size, timed=False)
    if evaluate:
        plan = with_evaluation(plan, ceiling, prepared, smoke_windows(original.model))
    try:
        remedy = partial(what_fits, plan, ceiling, prepared, windows, max_shard_size)
        require_memory(plan, ceiling, remedy)
    except ResourceError as misfit:
        remark = f"{misfit.what}; try: {misfit.hint}"
        return replace(plan, remarks=(*plan.remarks, remark))
    return plan
