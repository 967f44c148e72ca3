"""From a model and a recipe to a plan; unsupported combinations are refused here."""

from dataclasses import dataclass, replace
from typing import Any

from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import LinearFacts, ModelFacts
from quantkit.core.format import Format
from quantkit.core.method import Method
from quantkit.core.plan import Disposition, Plan, make_plan
from quantkit.core.recipe import Recipe
from quantkit.core.rules import rules_of, unloaded
from quantkit.model.opened import OpenModel
from quantkit.model.skeleton import is_linear, linear_facts
from quantkit.model.structure import Structure, trace_structure
from quantkit.recipes.options import checked_options


@dataclass(frozen=True)
class Prepared:
    """A model that is ready to be quantized: its structure, and the plan for it."""

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
        RefusedError: model, method, format or a target engine does not support the recipe.
    """
    method, output, engines, options = parts_of(recipe)
    if model.format is not None:
        raise RefusedError(
            f"`{model.checkpoint.folder}` is already quantized",
            why=f"its config.json has a quantization_config of format {model.format.name}",
            hint="use the original model, in bf16, fp16 or fp32",
        )
    if method.needs_inputs and recipe.calibration.samples == 0:
        raise InputError(f"method {method.name} needs calibration text", hint="--samples 128")
    structure = trace_structure(model.skeleton)
    facts, idle = linears_of(model, structure)
    plan = make_plan(recipe, facts, rules_of(method, output, engines))
    if warning := unloaded(output):
        plan = replace(plan, remarks=(*plan.remarks, warning))
    if idle:
        left = tuple(Disposition(f, None, "the forward never calls it") for f in idle)
        remark = f"{len(idle)} linears that the forward never calls are copied"
        remarks = (*plan.remarks, remark)
        plan = replace(plan, dispositions=plan.dispositions + left, remarks=remarks)
    if not plan.schemes:
        raise RefusedError(
            "no linear is left to quantize", why="all are left out", hint="use fewer overrides"
        )
    prepared = Prepared(model, structure, plan, method, output, options)
    output.config(model_facts(prepared))  # raises where the format cannot describe the model
    return prepared


def parts_of(recipe: Recipe) -> tuple[Method, Format, list[Engine], Any]:
    """Method, format, target engines and the method's options that a recipe names.

    Raises:
        InputError: a part or an option does not exist.
    """
    method: Method = registry.load("methods", recipe.method, "METHOD")
    output: Format = registry.load("formats", recipe.format, "FORMAT")
    engines = [registry.load("engines", name, "ENGINE") for name in recipe.engines]
    return method, output, engines, checked_options(method, recipe)


def model_facts(prepared: Prepared) -> ModelFacts:
    """The facts of the model that the format's config block states."""
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
