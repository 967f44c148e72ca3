"""The builds of a model: what each weighs, how it fills a GPU, and the run that makes the best."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from quantkit.checkpoint.stored import DTYPE_BYTES
from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.errors import RefusedError
from quantkit.core.plan import Plan
from quantkit.core.recipe import Recipe
from quantkit.core.rules import unloaded
from quantkit.core.serving import (
    Bound,
    Deployment,
    Load,
    ModelSummary,
    PlannedBuild,
    Server,
    Serving,
)
from quantkit.planning.model.kv import cache_bytes, dynamic_cache
from quantkit.planning.model.served import as_served
from quantkit.planning.model.weights import (
    ADDS_UP,
    Build,
    PlannedModel,
    recipe_build,
    stored_build,
    weigh,
    weights_rule,
)
from quantkit.planning.run.quantization import plan_quantization
from quantkit.planning.serve.deploy import deploy
from quantkit.planning.serve.legal import require_legal
from quantkit.planning.serve.offload import split_blocks
from quantkit.planning.serve.place import Place
from quantkit.planning.serve.remedies import fault_with_remedy, place_fault
from quantkit.planning.serve.speed import decode_bound, prefill_bound, read_bytes

SMALL_CHUNK, SMALL_ROWS = 2048, 256
"""vLLM's own on cards below 70 GiB."""

MOST_LINEARS = 10_000
"""Of which a run is planned unasked: every tensor of its files is, which takes seconds beyond."""

Pair = tuple[Build, PlannedBuild]
"""A build, and what is known of it."""


def plan_builds(
    model: PlannedModel,
    recipes: Sequence[Recipe],
    place: Place | None,
    load: Load,
    *,
    requested: bool = False,
) -> Plan:
    """The model as it is and as each recipe would leave it, in a place under a load.

    `requested`: the caller named the recipes. Where the best build is made by a recipe, the plan
    has the files, memory and time of the run that makes it.

    Raises:
        RefusedError: the engine does not run the model at these degrees, whatever its format.
    """
    server = None
    if place is not None:
        engine: Engine = registry.load("engines", place.engine, "ENGINE")
        require_legal(engine, model, stored_build(model), place.degrees)
        budget = place.settings.budget(place.gpu.memory).bytes
        server = Server(place.gpu, place.engine, place.degrees, budget)
    formats = dict.fromkeys(recipe.format for recipe in recipes)
    outputs = (registry.load("formats", name, "FORMAT") for name in formats)
    model = replace(model, notes=(*model.notes, *filter(None, map(unloaded, outputs))))
    pairs = [_planned(model, stored_build(model), place, load)]
    wanted = () if model.quantized and not requested else recipes
    if model.quantized and wanted:
        model = replace(model, notes=(*model.notes, ADDS_UP))
    pairs += [_made(model, recipe, place, load, requested=requested) for recipe in wanted]
    pairs.sort(key=lambda pair: -pair[1].bytes)
    builds = tuple(planned for _, planned in pairs)
    serving = Serving(summary_of(model), server, load, builds, requested)
    if place is not None:
        serving = replace(serving, hints=_hints(model, serving, pairs, place))
    return _with_run(model, serving)


def summary_of(model: PlannedModel) -> ModelSummary:
    """What a model is, for people."""
    layers = len(model.architecture.layers)
    extra = (t for t in model.inventory.rows if t.layer is not None and t.layer >= layers)
    return ModelSummary(
        name=model.name,
        model_type=model.architecture.model_type,
        parameters=sum(k.count * prod(k.tensor.shape) for k in model.kinds if not k.tensor.buffer),
        blocks=layers,
        origin=model.inventory.origin,
        quantized=model.quantized,
        extra_bytes=sum(t.alike * prod(t.shape) * DTYPE_BYTES[t.dtype] for t in extra),
        notes=model.notes,
    )


def plain_build(model: PlannedModel) -> PlannedBuild:
    """The model as it is, in no place."""
    return _planned(model, stored_build(model), None, Load(1))[1]


def _made(
    model: PlannedModel, recipe: Recipe, place: Place | None, load: Load, *, requested: bool
) -> Pair:
    """The build that a recipe makes, or why it makes none."""
    try:
        model = model.as_dense()
        build = recipe_build(model, recipe)
    except RefusedError as error:
        build = Build(recipe.name, recipe)
        fault = f"{error.what}; try: {error.hint}"
    else:
        if build.schemes:
            return _planned(model, build, place, load, requested=requested)
        fault = "it quantizes no linear of the model, which would stay as it is"
    return build, PlannedBuild(build.name, recipe, {}, weights_rule(model, build, "all"), fault)


def _with_run(model: PlannedModel, serving: Serving) -> Plan:
    """The plan with the run that makes the chosen build, or why it cannot be made."""
    chosen = serving.chosen or (serving.builds[-1] if serving.requested else None)
    if chosen is None or chosen.recipe is None or not chosen.parts:
        return Plan(serving=serving)
    linears = sum(kind.count for kind in model.kinds if kind.quantizable)
    if linears > MOST_LINEARS and not serving.requested and not model.unbuilt:
        return Plan(chosen.recipe, serving=serving)
    try:
        return replace(plan_quantization(model.as_dense(), chosen.recipe), serving=serving)
    except RefusedError as error:
        why = f": {error.why}" if error.why else ""
        refusal = f"{error.what}{why}; try: {error.hint}"
        return Plan(chosen.recipe, serving=replace(serving, refusal=refusal))


def _planned(
    model: PlannedModel, build: Build, place: Place | None, load: Load, *, requested: bool = False
) -> Pair:
    rule = weights_rule(model, build, "all")
    planned = PlannedBuild(build.name, build.recipe, weigh(model, build), rule)
    if place is None:
        return build, planned
    if fault := fault_with_remedy(model, build, place, requested=requested):
        return build, replace(planned, fault=fault)
    model = as_served(model, place.engine, place.gpu.capability)
    deployed = deploy(model, build, place, load)
    planned = replace(planned, deployment=deployed, note=_note(build, place))
    if deployed.fits:
        decode = _decode(model, build, place, deployed.load)
        return build, replace(planned, decode=decode, prefill=_prefill(model, build, place, load))
    if place.degrees.gpus > 1 or place.engine != "transformers":
        return build, planned
    room = _room(deployed)
    return build, replace(planned, offload=split_blocks(model, build, room, None, place.gpu.pcie))


def _room(deployed: Deployment) -> int:
    """Bytes that weights may take."""
    return deployed.budget.bytes - deployed.other - deployed.cache.bytes


def _decode(model: PlannedModel, build: Build, place: Place, load: Load) -> Bound | None:
    """All stages read one after the other, the ranks of each side by side."""
    if place.gpu.bandwidth is None:
        return None
    read = read_bytes(model, build, load.sequences, place.degrees)
    return decode_bound(read, _read_cache(model, place, load), load.sequences, place.gpu.bandwidth)


def _read_cache(model: PlannedModel, place: Place, load: Load) -> int:
    """Bytes of cache that the last token of the load's sequences attends to."""
    if place.engine == "transformers":
        before = load.context - 1
        cache = dynamic_cache(model.architecture, before, load.sequences, load.cache)
        return cache.decoding.bytes
    tensor = place.degrees.tensor
    return cache_bytes(
        model.architecture, load.context, load.sequences, dtype=load.cache, tp=tensor
    ).bytes


def _prefill(model: PlannedModel, build: Build, place: Place, load: Load) -> Bound | None:
    """Linears are multiplied as the engine does it on that GPU.

    None for a model whose files are quantized: packed words do not say what is multiplied.
    """
    if model.quantized:
        return None
    rate = place.gpu.rates.get(_products(build, place))
    if rate is None:
        return None
    return prefill_bound(model, load.context, rate * place.degrees.tensor)


def _products(build: Build, place: Place) -> str:
    """The numbers that linears of a build are multiplied in there, as `Gpu.rates` names them."""
    scheme = next(iter(build.schemes.values()), None)
    engine: Engine = registry.load("engines", place.engine, "ENGINE")
    return engine.multiplies(scheme, place.gpu.capability) if scheme else "bf16"


def _note(build: Build, place: Place) -> str | None:
    """How linears are multiplied otherwise than their scheme says, as a sentence."""
    scheme, products = next(iter(build.schemes.values()), None), _products(build, place)
    if scheme is None or products == scheme.products:
        return None
    engine: Engine = registry.load("engines", place.engine, "ENGINE")
    if products == "bf16":
        lacking = f"{engine.summary} has no {scheme.products.upper()} kernel for {place.gpu.name}"
        return f"{lacking} and multiplies in 16 bits"
    return f"{engine.summary} rounds activations to {products.upper()}, too, on {place.gpu.name}"


def _hints(
    model: PlannedModel, serving: Serving, pairs: Sequence[Pair], place: Place
) -> tuple[str, ...]:
    """Options at which the smallest build fits, each tried; none where one fits already.

    More ranks may be those of another build, where the smallest is not to be divided.
    """
    chosen, load = serving.chosen, serving.load
    if chosen is None or chosen.fits or chosen.deployment is None:
        return ()
    build = next(build for build, planned in pairs if planned is chosen)
    deployment, hints = chosen.deployment, []
    if deployment.longest:
        hints.append(f"--context {deployment.longest}")
    if deployment.most:
        hints.append(f"--batch {deployment.most}")
    hints += [
        option
        for option, there, less in _others(place, load)
        if deploy(model, build, there, less).fits
    ]
    candidates = serving.candidates
    smallest_first = (b for b, planned in reversed(pairs) if planned in candidates)
    degrees = (more_ranks(model, each, place, load) for each in smallest_first)
    if more := next(filter(None, degrees), None):
        hints.append(f"--tp {more}")
    return tuple(hints)


def _others(place: Place, load: Load) -> list[tuple[str, Place, Load]]:
    """Options that take less memory: a cache of 8 bits, and vLLM's smaller steps."""
    others: list[tuple[str, Place, Load]] = []
    if load.cache == "16-bit" and place.engine != "transformers":  # which has no such cache
        others.append(("--kv 8", place, replace(load, cache="fp8")))
    if place.engine == "vllm" and place.settings.chunk > SMALL_CHUNK:
        settings = replace(place.settings, chunk=SMALL_CHUNK, rows=SMALL_ROWS)
        option = f"--set chunk={SMALL_CHUNK} --set rows={SMALL_ROWS}"
        others.append((option, replace(place, settings=settings), load))
    return others


def more_ranks(model: PlannedModel, build: Build, place: Place, load: Load) -> int | None:
    """The smallest legal tensor-parallel degree, a power of 2 up to 64, at which a build fits."""
    for tensor in (2, 4, 8, 16, 32, 64):
        wider = place.at(replace(place.degrees, tensor=tensor))
        if tensor <= place.degrees.tensor or place_fault(model, build, wider) is not None:
            continue
        if deploy(model, build, wider, load).fits:
            return tensor
    return None
