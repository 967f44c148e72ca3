"""What `plan` tells of a model: its parts, its builds, and how each would fill a GPU."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.errors import RefusedError
from quantkit.core.notebook import html_table
from quantkit.core.recipe import Recipe
from quantkit.core.rules import unloaded
from quantkit.planning.model.inventory import Part
from quantkit.planning.model.kv import cache_bytes, dynamic_cache
from quantkit.planning.model.served import as_served
from quantkit.planning.model.weights import (
    Build,
    PlannedModel,
    recipe_build,
    stored_build,
    weigh,
)
from quantkit.planning.run.estimate import Making, making
from quantkit.planning.serve.deploy import Deployment, Load, deploy
from quantkit.planning.serve.hardware import Gpu
from quantkit.planning.serve.legal import require_legal
from quantkit.planning.serve.offload import Split, split_blocks
from quantkit.planning.serve.place import Place
from quantkit.planning.serve.remedies import place_fault, told_fault
from quantkit.planning.serve.speed import Bound, decode_bound, prefill_bound, read_bytes
from quantkit.planning.train.memory import Training
from quantkit.planning.train.training import Schooling, school, training_hints

SMALL_CHUNK, SMALL_ROWS = 2048, 256
"""vLLM's own on cards below 70 GiB."""


@dataclass(frozen=True)
class Outlook:
    """One build: what it weighs and, where a GPU was named, how it fills that.

    `fault` says why it cannot be had, or be served so; then there is no deployment. Bounds of speed
    are of what fits, `offload` of what does not, if it can run so.
    """

    build: Build
    parts: Mapping[Part, int]
    fault: str | None = None
    deployment: Deployment | None = None
    decode: Bound | None = None
    prefill: Bound | None = None
    offload: Split | None = None

    @property
    def bytes(self) -> int:
        """All tensors of the build."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether it serves the asked load."""
        return self.deployment is not None and self.deployment.fits


@dataclass(frozen=True)
class Forecast:
    """The answer of `plan`: the builds in falling size, and what to `try`.

    `asked`: the builds but for the model as it is were asked for, and it is about them. `refusal`:
    why `quantize` would not make the chosen one.
    """

    model: PlannedModel
    outlooks: tuple[Outlook, ...]
    place: Place | None
    load: Load
    asked: bool = False
    hints: tuple[str, ...] = ()
    schooling: Schooling | None = None
    run: Making | None = None
    refusal: str | None = None

    @property
    def refused(self) -> str | None:
        """Why a build that was asked for cannot be had, or none can; None if it can."""
        wanted = [o for o in self.outlooks if o.build.recipe] if self.asked else []
        if all(o.fault for o in self.outlooks):
            wanted = list(self.outlooks)
        fault = next((f"{o.build.name}: {o.fault}" for o in wanted if o.fault), None)
        return fault or (self.refusal if self.asked else None)

    @property
    def served(self) -> list[Outlook]:
        """The builds in question that could be served at all."""
        wanted = (o for o in self.outlooks if o.build.recipe or not self.asked)
        return [o for o in wanted if o.deployment is not None]

    @property
    def chosen(self) -> Outlook | None:
        """The largest build that fits, else the smallest that could be served at all."""
        served = self.served
        return next((o for o in served if o.fits), served[-1] if served else None)

    def _repr_html_(self) -> str:
        rows = [
            (
                outlook.build.name,
                outlook.bytes or None,
                outlook.deployment.total if outlook.deployment else None,
                outlook.deployment.longest if outlook.deployment else None,
                outlook.fault or ("" if outlook.deployment is None else outlook.fits),
            )
            for outlook in self.outlooks
        ]
        head = ("build", "bytes", "bytes on a GPU", "longest context", "fits")
        return html_table(self.model.name, head, rows)


def forecast(
    model: PlannedModel,
    recipes: Sequence[Recipe],
    place: Place | None,
    load: Load,
    *,
    asked: bool = False,
) -> Forecast:
    """The model as it is and as each recipe would leave it, in a place under a load.

    Raises:
        RefusedError: the engine does not run the model at these degrees, whatever its format.
    """
    if place is not None:
        engine: Engine = registry.load("engines", place.engine, "ENGINE")
        require_legal(engine, model, stored_build(model), place.degrees)
    formats = dict.fromkeys(recipe.format for recipe in recipes)
    outputs = (registry.load("formats", name, "FORMAT") for name in formats)
    model = replace(model, notes=(*model.notes, *filter(None, map(unloaded, outputs))))
    outlooks = [_outlook(model, stored_build(model), place, load)]
    for recipe in () if model.quantized and not asked else recipes:
        try:
            build = recipe_build(model, recipe)
        except RefusedError as error:
            fault = f"{error.what}; try: {error.hint}"
            outlooks.append(Outlook(Build(recipe.name, recipe), {}, fault))
            continue
        if not build.schemes:
            fault = "it quantizes no linear of the model, which would stay as it is"
            outlooks.append(Outlook(build, {}, fault))
            continue
        outlooks.append(_outlook(model, build, place, load, asked=asked))
    outlooks.sort(key=lambda outlook: -outlook.bytes)
    found = Forecast(model, tuple(outlooks), place, load, asked)
    return _with_run(replace(found, hints=hints(found)))


def _with_run(found: Forecast) -> Forecast:
    """What it takes to make the chosen build, or why it cannot be made; neither where none is."""
    chosen = found.chosen or (found.outlooks[-1] if found.asked else None)
    if chosen is None or chosen.build.recipe is None or not chosen.parts:
        return found
    try:
        return replace(found, run=making(found.model, chosen.build.recipe))
    except RefusedError as error:
        why = f": {error.why}" if error.why else ""
        return replace(found, refusal=f"{error.what}{why}; try: {error.hint}")


def schooled(model: PlannedModel, training: Training, gpu: Gpu | None, load: Load) -> Forecast:
    """The forecast of a training run on the load's sequences.

    Raises:
        RefusedError: offloading that no sharding of this kind has, or a quantized model.
    """
    training = replace(training, tokens=load.context, sequences=load.sequences)
    schooling = school(model, training, gpu)
    outlook = Outlook(stored_build(model), weigh(model, stored_build(model)))
    tried = training_hints(model, training, gpu)
    return Forecast(model, (outlook,), None, load, hints=tried, schooling=schooling)


def _outlook(
    model: PlannedModel, build: Build, place: Place | None, load: Load, *, asked: bool = False
) -> Outlook:
    outlook = Outlook(build, weigh(model, build))
    if place is None:
        return outlook
    if fault := told_fault(model, build, place, asked=asked):
        return replace(outlook, fault=fault)
    model = as_served(model, place.engine, place.gpu.capability)
    deployed = deploy(model, build, place, load)
    outlook = replace(outlook, deployment=deployed)
    if deployed.fits:
        decode, prefill = _decode(model, deployed), _prefill(model, deployed)
        return replace(outlook, decode=decode, prefill=prefill)
    if place.degrees.gpus > 1 or place.engine != "transformers":
        return outlook
    room = deployed.budget.bytes - deployed.other - deployed.cache.bytes
    return replace(outlook, offload=split_blocks(model, build, room, None, place.gpu.pcie))


def _decode(model: PlannedModel, deployed: Deployment) -> Bound | None:
    """All stages read one after the other, the ranks of each side by side."""
    place, load = deployed.place, deployed.load
    if place.gpu.bandwidth is None:
        return None
    read = read_bytes(model, deployed.build, load.sequences, place.degrees)
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


def _prefill(model: PlannedModel, deployed: Deployment) -> Bound | None:
    """Weights of 16 bits are multiplied as such; with 8-bit activations in int8.

    None for a model whose files are quantized: packed words do not tell what is multiplied.
    """
    place = deployed.place
    if model.quantized:
        return None
    eight = any(s.activation for s in deployed.build.schemes.values())
    rate = place.gpu.rates.get("int8" if eight else "bf16")
    if rate is None:
        return None
    return prefill_bound(model, deployed.load.context, rate * place.degrees.tensor)


def hints(found: Forecast) -> tuple[str, ...]:
    """Options that would let the smallest build fit, each tried; none where one fits already.

    More ranks may be those of another build, where the smallest is not to be divided.
    """
    chosen = found.chosen
    if chosen is None or chosen.fits or chosen.deployment is None:
        return ()
    deployment, load, place = chosen.deployment, found.load, chosen.deployment.place
    hints = []
    if deployment.longest:
        hints.append(f"--context {deployment.longest}")
    if deployment.most:
        hints.append(f"--batch {deployment.most}")
    others: list[tuple[str, Place, Load]] = []
    if load.cache == "16-bit" and place.engine != "transformers":  # which has no such cache
        others.append(("--kv 8", place, replace(load, cache="fp8")))
    if place.engine == "vllm" and place.settings.chunk > SMALL_CHUNK:
        settings = replace(place.settings, chunk=SMALL_CHUNK, rows=SMALL_ROWS)
        option = f"--set chunk={SMALL_CHUNK} --set rows={SMALL_ROWS}"
        others.append((option, replace(place, settings=settings), load))
    for option, there, asked in others:
        if deploy(found.model, chosen.build, there, asked).fits:
            hints.append(option)
    smallest_first = (outlook.build for outlook in reversed(found.served))
    degrees = (more_ranks(found.model, build, place, load) for build in smallest_first)
    if more := next(filter(None, degrees), None):
        hints.append(f"--tp {more}")
    return tuple(hints)


def more_ranks(model: PlannedModel, build: Build, place: Place, load: Load) -> int | None:
    """The smallest legal tensor-parallel degree, a power of 2 up to 64, at which a build fits."""
    for tensor in (2, 4, 8, 16, 32, 64):
        wider = place.at(replace(place.degrees, tensor=tensor))
        if tensor <= place.degrees.tensor or place_fault(model, build, wider) is not None:
            continue
        if deploy(model, build, wider, load).fits:
            return tensor
    return None
