"""Why an engine does not serve a build in a place, and what it serves instead.

Each remedy found here that names an option was tried; those of an engine's rules are passed on.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.recipe import GroupSize, Recipe
from quantkit.core.scheme import GROUP_SIZES
from quantkit.planning.model.weights import Build, PlannedModel, recipe_build
from quantkit.planning.serve.legal import build_fault, degree_fault, legal_degrees
from quantkit.planning.serve.place import Place
from quantkit.planning.serve.settings import ENGINES


def place_fault(model: PlannedModel, build: Build, place: Place) -> str | None:
    """Why the engine does not serve the build there, or None: format, kernels, degrees."""
    engine: Engine = registry.load("engines", place.engine, "ENGINE")
    fault = build_fault(engine, model, build, place.gpu.capability)
    return fault or degree_fault(engine, model, build, place.degrees)


def fault_with_remedy(
    model: PlannedModel, build: Build, place: Place, *, requested: bool
) -> str | None:
    """Why the engine does not serve the build there, with a remedy; None if it does.

    `requested`: the command names the recipe, and a remedy adds to it; else a remedy names one.
    """
    fault = place_fault(model, build, place)
    if fault is None:
        return None
    if build.recipe is None:  # files that exist cannot be changed
        fault = fault.partition("; try: ")[0]
    if "; try: " in fault:
        return fault
    remedy = next(_remedies(model, build, place, requested=requested), None)
    return f"{fault}; try: {remedy}" if remedy else fault


def _remedies(model: PlannedModel, build: Build, place: Place, *, requested: bool) -> Iterator[str]:
    """Another group size, fewer ranks, another engine; of files only the engine."""
    if build.recipe is not None:
        named = "" if requested else f"--recipe {build.recipe.name} "
        for size in (*GROUP_SIZES, "channel"):
            if _serves_groups(model, build.recipe, size, place):
                yield f"{named}--set scheme.group_size={size}"
    engine: Engine = registry.load("engines", place.engine, "ENGINE")
    for tensor in reversed(legal_degrees(engine, model, build, place.degrees)):
        fewer = place.at(replace(place.degrees, tensor=tensor))
        if tensor < place.degrees.tensor and place_fault(model, build, fewer) is None:
            yield f"--tp {tensor}"
    for name in ENGINES:
        with suppress(InputError):  # the engine ignores a setting of the command
            if place_fault(model, build, place.under(name)) is None:
                yield f"--engine {name}"
    if build.recipe is not None:
        yield "another recipe"
    else:
        yield "the model that it was quantized from" if model.quantized else "another GPU"


def _serves_groups(model: PlannedModel, recipe: Recipe, size: GroupSize, place: Place) -> bool:
    other = replace(recipe, scheme=replace(recipe.scheme, group_size=size))
    try:
        build = recipe_build(model, other)
    except RefusedError:
        return False
    return place_fault(model, build, place) is None
