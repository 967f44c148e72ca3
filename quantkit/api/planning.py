"""The functions that plan a model from config and headers, and check this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from quantkit.core.progress import Report, silent

if TYPE_CHECKING:
    from quantkit.core.plan import Plan
    from quantkit.core.recipe import Recipe
    from quantkit.core.training import Training
    from quantkit.pipeline.doctor import Finding

PLANNED_RECIPES = (
    *("smoothquant", "w8a16", "fp8", "fp8-block", "fp8-static", "mxfp8"),
    *("gptq", "nf4-double", "nvfp4", "nvfp4-w4a16", "mxfp4"),
)
"""The recipes that `plan` shows by default."""


def plan(  # noqa: PLR0913 - the public surface; each has a default that is right for most
    model: str,
    *,
    gpu: str | None = None,
    context: int | None = None,
    batch: int | None = None,
    engine: str | None = None,
    tp: int | None = None,
    pp: int | None = None,
    ep: int | None = None,
    kv: Literal[16, 8] | None = None,
    recipes: Sequence[Recipe] | None = None,
    settings: Mapping[str, str] | None = None,
    training: Training | None = None,
) -> Plan:
    """Plan the size of a model and its quantized builds, and whether they fit a GPU; no torch.

    Example:
        >>> found = quantkit.plan("model", gpu="4090", context=512)
        >>> found.serving.chosen.fits
        True

    It reads or downloads only config.json and the headers of the weight files. Sizes are in bytes:
    `serving` has the builds, `training` the training run, and `files`, `memory` and `time` those of
    the run that makes the chosen build.

    Args:
        model: a folder, a config.json, or a hub id `org/name[@revision]`.
        gpu: a name (`4090`), `24GB@1008GB/s`, or `local`; by default only weights are planned.
        context: tokens of a sequence; by default the model's context, at most 8192.
        batch: number of concurrent sequences; 1 by default.
        engine: "vllm" (the default), "sglang" or "transformers".
        tp: tensor-parallel ranks; 1 by default, as are `pp` and `ep`.
        pp: pipeline stages.
        ep: expert-parallel ranks.
        kv: bits per element of the KV cache; 16 by default.
        recipes: recipes of the builds; by default those of 8 and 4 bits.
        settings: engine settings, by the names of `planning.serve.settings.Settings`.
        training: plan this training run instead, with `context` and `batch` given here.

    Raises:
        QuantkitError: an unknown name, an unused option, or an unsupported setup.
    """
    from quantkit.core.serving import Degrees
    from quantkit.planning.builds import plan_builds
    from quantkit.planning.model.opened import open_model
    from quantkit.planning.options import require_used
    from quantkit.planning.serve.deploy import load_of
    from quantkit.planning.serve.place import named_place

    degrees = {"tp": tp, "pp": pp, "ep": ep}
    stated: dict[str, object] = {"context": context, "batch": batch, "engine": engine, "kv": kv}
    stated |= {**degrees, "settings": settings, "recipes": recipes}
    require_used(stated, gpu=gpu is not None, training=training is not None)
    place = None
    if gpu is not None:
        ranks = Degrees(*(1 if count is None else count for count in degrees.values()))
        place = named_place(gpu, engine or "vllm", ranks, settings)
    planned = open_model(model)
    sequences, cached = 1 if batch is None else batch, 16 if kv is None else kv
    load = load_of(planned.architecture, context, sequences, cached)
    if training is not None:
        from quantkit.planning.train.training import plan_training

        return plan_training(planned, training, place.gpu if place else None, load)
    requested = recipes is not None
    if recipes is None and not planned.quantized:
        from quantkit.recipes.loader import load_recipe

        recipes = [load_recipe(name) for name in PLANNED_RECIPES]
    return plan_builds(planned, recipes or (), place, load, requested=requested)


def doctor(*, time: bool = False, report: Report = silent) -> tuple[Finding, ...]:
    """Check this machine and this installation.

    Example:
        >>> [finding.check for finding in quantkit.doctor() if not finding.ok]
        []

    Args:
        time: whether to time the machine for plans of its runs, which takes half a minute.
        report: called with a `Progress` after each step of the timing.
    """
    from importlib.util import find_spec

    from quantkit.pipeline.doctor import Finding
    from quantkit.pipeline.doctor import doctor as examine
    from quantkit.planning.run.timing import recall, remember

    found = examine()
    if find_spec("torch") is not None:
        from quantkit.bench.gpus import gpu_findings, gpu_machine

        found += gpu_findings(gpu_machine())
    if time:
        from quantkit.bench.throughput import time_machine

        remember(time_machine(report))
    speed = recall()
    detail = speed.line() if speed else "not timed: quantkit doctor --time"
    return (*found, Finding("speed", ok=True, detail=detail))
