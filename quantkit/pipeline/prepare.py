"""From a model and a recipe to a plan: everything that can be refused is refused here."""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.format import Format, LinearFacts, ModelFacts
from quantkit.core.method import Method
from quantkit.core.plan import Check, Fate, Plan, make_plan
from quantkit.core.recipe import Recipe
from quantkit.core.scheme import Scheme
from quantkit.model.open import OpenModel
from quantkit.model.skeleton import is_linear, linear_facts
from quantkit.model.structure import Structure, trace_structure


@dataclass(frozen=True)
class Prepared:
    """A model that is ready to be quantized: what it is made of, and what becomes of it."""

    model: OpenModel
    structure: Structure
    plan: Plan
    method: Method
    format: Format
    options: Any


def prepare(model: OpenModel, recipe: Recipe) -> Prepared:
    """The plan for `model`; no tensor is read.

    Raises:
        InputError: unknown method, format, engine or option, or an override that matches nothing.
        RefusedError: model, method, format or a target engine cannot hold what the recipe asks.
    """
    method, output, engines, options = parts_of(recipe)
    if model.format is not None:
        raise RefusedError(
            f"`{model.checkpoint.folder}` is quantized already",
            why=f"its config.json has a quantization_config of format {model.format.name}",
            hint="the original model, in bf16, fp16 or fp32",
        )
    if method.needs_inputs and recipe.calibration.samples == 0:
        raise InputError(f"method {method.name} needs calibration text", hint="--samples 128")
    structure = trace_structure(model.skeleton)
    facts, idle = linears_of(model, structure)
    plan = make_plan(recipe, facts, checks_of(method, output, engines))
    if idle:
        fates = tuple(Fate(f, None, "the forward never calls it") for f in idle)
        remark = f"{len(idle)} linears that the forward never calls are copied"
        plan = replace(plan, fates=plan.fates + fates, remarks=(*plan.remarks, remark))
    if not plan.schemes:
        raise RefusedError(
            "nothing is left to quantize", why="every linear is left out", hint="fewer overrides"
        )
    prepared = Prepared(model, structure, plan, method, output, options)
    output.config(model_facts(prepared))  # refuses what the format cannot say of the whole model
    return prepared


def parts_of(recipe: Recipe) -> tuple[Method, Format, list[Engine], Any]:
    """Method, format, target engines and the method's options that a recipe names.

    Raises:
        InputError: there is no such part or option; no model is needed to tell.
    """
    method: Method = registry.load("methods", recipe.method, "METHOD")
    output: Format = registry.load("formats", recipe.format, "FORMAT")
    engines = [registry.load("engines", name, "ENGINE") for name in recipe.engines]
    return method, output, engines, method_options(method, recipe)


def model_facts(prepared: Prepared) -> ModelFacts:
    """What the format's config block says of the model."""
    skeleton = prepared.model.skeleton
    outside = (
        name
        for name, module in skeleton.model.named_modules()
        if is_linear(module) and not name.startswith(skeleton.prefix + ".")
    )
    return ModelFacts(
        schemes=prepared.plan.schemes,
        skipped=(*prepared.plan.skipped, *outside),
        head=skeleton.head or None,
        dtype=prepared.model.dtype_name,
        block_prefix=skeleton.prefix,
    )


def method_options(method: Method, recipe: Recipe) -> Any:
    """The method's options with those of the recipe set.

    Raises:
        InputError: the method has no such option, or it cannot have that value.
    """
    known = {field.name: field.default for field in fields(method.options)}
    hints = get_type_hints(method.options)
    for key, value in recipe.options.items():
        if key not in known:
            raise InputError(
                f"method {method.name} has no option `{key}`",
                why=f"it has: {', '.join(known) or 'none'}",
                hint=registry.did_you_mean(key, tuple(known)),
            )
        if fault := _misfit(hints[key], value):
            raise InputError(
                f"option `{key}` of method {method.name} is {value!r}",
                why=fault,
                hint=f"--set options.{key}={json.dumps(known[key])}",
            )
    try:
        return method.options(**recipe.options)
    except ValueError as error:
        raise InputError(
            f"the options of method {method.name} do not fit", why=str(error), hint="its defaults"
        ) from error


def _misfit(wanted: Any, value: Any) -> str | None:
    """Why `value` is none of type `wanted`, or None; numbers among options are never negative."""
    try:
        TypeAdapter(wanted).validate_python(value, strict=True)
    except ValidationError as error:
        legal = [e["msg"].removeprefix("Input should be ") for e in error.errors()]
        return f"it takes {' or '.join(legal)}"
    negative = isinstance(value, int | float) and value < 0
    return "it takes no negative number" if negative else None


def linears_of(
    model: OpenModel, structure: Structure
) -> tuple[list[LinearFacts], list[LinearFacts]]:
    """Facts of the linears that the blocks call, and of those that they never call."""
    called: list[LinearFacts] = []
    idle: list[LinearFacts] = []
    for index, block in enumerate(model.skeleton.blocks):
        name = model.skeleton.block_name(index)
        kind = structure.of(index)
        fused = {n: g.names for g in kind.groups for n in g.names}
        for path, module in block.named_modules():
            if not is_linear(module):
                continue
            together = tuple(f"{name}.{n}" for n in fused.get(path, ()))
            facts = linear_facts(f"{name}.{path}", module, together)
            (called if path in fused else idle).append(facts)
    return called, idle


def checks_of(method: Method, output: Format, engines: list[Engine]) -> list[Check]:
    """The rules that every scheme has to keep; each gives a sentence saying what it breaks."""

    def method_check(scheme: Scheme, _: LinearFacts) -> str | None:
        if (scheme.grid, scheme.bits) in method.grids:
            return None
        legal = ", ".join(f"{grid} {bits}" for grid, bits in sorted(method.grids))
        return (
            f"method {method.name} does not make {scheme.grid} with {scheme.bits} bits; "
            f"try: one of {legal}"
        )

    def format_check(scheme: Scheme, linear: LinearFacts) -> str | None:
        fault = output.check(scheme, linear)
        if fault is None or "; try: " in fault:
            return fault
        others = (registry.load("formats", name, "FORMAT") for name in registry.names("formats"))
        holding = [other.name for other in others if other.check(scheme, linear) is None]
        return f"{fault}; try: --format {' or '.join(holding)}" if holding else fault

    def engine_check(engine: Engine) -> Callable[[Scheme, LinearFacts], str | None]:
        return lambda scheme, linear: engine.refuses(output.name, scheme, linear)

    def sense_check(scheme: Scheme, _: LinearFacts) -> str | None:
        return scheme.contradiction()

    return [sense_check, method_check, format_check, *(engine_check(engine) for engine in engines)]
