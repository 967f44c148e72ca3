"""From a model and a recipe to a plan; unsupported combinations are refused here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from torch import nn

from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import Layout, LinearFacts, ModelFacts
from quantkit.core.format import Format
from quantkit.core.method import Method
from quantkit.core.plan import LEFT_OUT, Disposition, Plan, make_plan
from quantkit.core.recipe import Recipe
from quantkit.core.rules import require_kv_cache, rules_of, unloaded
from quantkit.grid.activation import STATIC
from quantkit.model.chain import require_chain, require_own_weights
from quantkit.model.opened import OpenModel
from quantkit.model.skeleton import Skeleton, is_linear, linear_facts
from quantkit.model.structure import Structure, trace_structure
from quantkit.pipeline.kv_cache import cache_layout, require_caches
from quantkit.recipes.options import checked_options

MOST = 0.9
"""Of the linear weights in the blocks, for a model to count as quantized."""
WHOLE = 0.9995
"""What is shown as 100.0 % of them."""
IDLE = "the forward never calls it"
FUSED = "fused experts of a form that is not known"
MATRICES = "matrices in one parameter, which no linear calls"
ROUTER = "it weighs experts for each token"
NOT_ASKED = (LEFT_OUT, IDLE, FUSED, MATRICES, ROUTER)
"""Why a linear stays as it is whatever a method, format or engine supports."""
MATRIX = 16
"""Least side of a matrix among many in one parameter."""


@dataclass(frozen=True)
class Prepared:
    """A model that is ready to be quantized: its structure, and the plan for it.

    `cache`: the scales of keys and values that the artifact stores, by their names.
    """

    model: OpenModel
    structure: Structure
    plan: Plan
    method: Method
    format: Format
    options: Any
    cache: Layout = field(default_factory=dict)


def prepare(model: OpenModel, recipe: Recipe) -> Prepared:
    """The plan for `model`; no tensor is read.

    Raises:
        InputError: unknown method, format, engine or option, or an override that matches nothing.
        RefusedError: model, method, format or a target engine does not support the recipe.
    """
    model = model.dense()
    method, output, engines, options = parts_of(recipe)
    _require_text(recipe, method)
    require_own_weights(model.skeleton, model.weights.repeats)
    structure = trace_structure(model.skeleton, model.weights.repeats, model.device)
    require_chain(model.skeleton)
    attentions = structure.attentions(model.skeleton) if recipe.kv_cache else {}
    if recipe.kv_cache:
        require_caches(model.text_config, attentions, shared=bool(model.weights.repeats))
    cache = cache_layout(model.weights.holders[path] for path in attentions)
    facts, idle, routers = linears_of(model, structure)
    plan = make_plan(recipe, facts, rules_of(method, output, engines))
    if warning := unloaded(output):
        plan = replace(plan, remarks=(*plan.remarks, warning))
    plan = _with_the_rest(plan, model, idle, routers)
    for engine in engines:
        if fault := engine.refuses_mix(plan.by_name):
            raise RefusedError(fault, hint="give all of them the same scheme")
    if few := _unreached(model, structure, plan):
        remark = f"{few} linears of experts that no text reaches are rounded to nearest"
        plan = replace(plan, remarks=(*plan.remarks, remark))
    if not plan.schemes and recipe.kv_cache is None:
        raise RefusedError(
            "no linear is left to quantize", why="all are left out", hint="use fewer overrides"
        )
    _require_most(plan)
    prepared = Prepared(model, structure, plan, method, output, options, cache)
    output.config(model_facts(prepared))  # raises where the format cannot describe the model
    return prepared


def _require_text(recipe: Recipe, method: Method) -> None:
    needs = {
        f"method {method.name} needs": method.needs_inputs,
        "static scales of activations need": recipe.scheme.activation in STATIC,
        "scales of a KV cache need": recipe.kv_cache is not None,
    }
    for what in (what for what, needed in needs.items() if needed):
        if recipe.calibration.samples == 0:
            raise InputError(f"{what} calibration text", hint="--samples 128")


def _unreached(model: OpenModel, structure: Structure, plan: Plan) -> int:
    """Number of linears that are quantized though the traced forward never reaches their expert."""
    return sum(
        f"{model.skeleton.block_name(index)}.{name}" in plan.schemes
        for index, kind in enumerate(structure.blocks)
        for group in structure.kinds[kind].unreached
        for name in group.names
    )


def _with_the_rest(
    plan: Plan, model: OpenModel, idle: list[LinearFacts], routers: list[LinearFacts]
) -> Plan:
    """The plan with what is not quantized in any case, and remarks on it."""
    fused = _fused(model)
    experts = [each for each in fused if "expert" in each.name]
    others = [each for each in fused if each not in experts]
    left = [(idle, IDLE), (experts, FUSED), (others, MATRICES), (routers, ROUTER)]
    dispositions = [Disposition(each, None, reason) for found, reason in left for each in found]
    plan = replace(plan, dispositions=(*plan.dispositions, *dispositions))
    remarks = []
    if shared := sum(each.linear.shared for each in plan.dispositions if each.scheme):
        remarks.append(
            f"{shared} linears stand in several blocks; each is quantized on the inputs of the "
            "first that calls it"
        )
    if idle:
        remarks.append(f"{len(idle)} linears that the forward never calls are copied")
    if coded := model.checkpoint.coding.tensors:
        remarks.append(
            f"the source is quantized already: {len(coded)} weights in "
            f"{model.checkpoint.coding.label} are "
            "decoded first, and the loss of both quantizations adds up"
        )
    if unused := model.weights.unused:
        copied = f"copied, as the model's class does not use them: {len(unused)}"
        remarks.append(f"{copied}, first `{unused[0]}`")
    if plan.schemes and plan.share < WHOLE:
        remarks.append(f"{plan.share:.1%} of the linear weights in the blocks are quantized")
    return replace(plan, remarks=(*plan.remarks, *remarks))


def _fused(model: OpenModel) -> list[LinearFacts]:
    """The matrices, of experts for the most part, that one parameter holds in a form of its own."""
    found = []
    for index, block in enumerate(model.skeleton.blocks):
        for path, module in block.named_modules():
            for key, parameter in module.named_parameters(recurse=False):
                convolves = "conv" in f"{path}{type(module).__name__}".lower()
                stacked = parameter.ndim == 2 and "expert" in path and not is_linear(module)
                if not stacked and (parameter.ndim != 3 or convolves):
                    continue
                *counts, outputs, inputs = parameter.shape
                if min(outputs, inputs) >= MATRIX:
                    within = ".".join(filter(None, (model.skeleton.block_name(index), path)))
                    name = f"{within}.{key}"
                    found.append(LinearFacts(name, prod(counts) * outputs, inputs))
    return found


def _require_most(plan: Plan) -> None:
    """Check that a plan quantizes most of a model, or that its recipe accepts less.

    Raises:
        RefusedError: less than MOST of the linear weights would be quantized.
    """
    if plan.share >= MOST or plan.recipe.allow_partial:
        return
    if not plan.schemes and all(each.reason in NOT_ASKED for each in plan.dispositions):
        return  # the cache alone is quantized
    left: dict[str, list[LinearFacts]] = {}
    for each in plan.dispositions:
        if each.scheme is None and each.reason != LEFT_OUT:
            left.setdefault(each.reason, []).append(each.linear)
    named = (f"{len(f)} like `{f[0].name}`: {reason}" for reason, f in left.items())
    raise RefusedError(
        f"only {plan.share:.0%} of the linear weights in the blocks would be quantized",
        why="\n".join(named),
        hint="--set allow_partial=true",
    )


def parts_of(recipe: Recipe) -> tuple[Method, Format, list[Engine], Any]:
    """Method, format, target engines and the method's options that a recipe names.

    Raises:
        InputError: a part or an option does not exist.
    """
    method: Method = registry.load("methods", recipe.method, "METHOD")
    output: Format = registry.load("formats", recipe.format, "FORMAT")
    engines = [registry.load("engines", name, "ENGINE") for name in recipe.engines]
    require_kv_cache(recipe.kv_cache, output, engines)
    return method, output, engines, checked_options(method, recipe)


def model_facts(prepared: Prepared) -> ModelFacts:
    """The facts of the model that the format's config block states."""
    skeleton, stored = prepared.model.skeleton, prepared.model.weights.modules
    outside = (
        name
        for name, module in skeleton.model.named_modules()
        if is_linear(module) and not name.startswith(skeleton.prefix + ".")
    )
    again = prepared.model.weights.places_of  # engines go by the stored or by the model's names
    left = (*prepared.plan.skipped, *outside)
    head = skeleton.head or None
    return ModelFacts(
        schemes={
            name: scheme.read
            for linear, scheme in prepared.plan.schemes.items()
            for name in (stored[linear], linear, *again(linear))
        },
        skipped=tuple(
            dict.fromkeys(name for n in left for name in (stored.get(n, n), n, *again(n)))
        ),
        head=stored.get(head, head) if head else None,
        dtype=prepared.model.dtype_name,
        block_prefix=_stored_blocks(skeleton, stored),
        block_module=skeleton.prefix,
        matrices=_matrices(prepared),
        kv_cache=prepared.plan.recipe.kv_cache,
    )


def _stored_blocks(skeleton: Skeleton, stored: Mapping[str, str]) -> str:
    """The path of the block list in the checkpoint, by modules whose names in a block are kept."""
    first = f"{skeleton.block_name(0)}."
    for module, name in stored.items():
        inside = module.removeprefix(first)
        if inside != module and name.endswith(f".{inside}"):
            return name.removesuffix(f".{inside}").rpartition(".")[0]
    return skeleton.prefix


def _matrices(prepared: Prepared) -> tuple[str, ...]:
    """Stored names of copied modules with a matrix that are neither linears nor embeddings."""
    weights, model = prepared.model.weights, prepared.model.skeleton.model
    known = {
        weights.modules.get(name)
        for name, module in model.named_modules()
        if is_linear(module) or isinstance(module, nn.Embedding)
    }
    shapes = {n: tensor.shape for n, tensor in prepared.model.checkpoint.names.items()}
    stored = (n for n, shape in shapes.items() if len(shape) == 2 and n not in weights.cut)
    parts = (name.rpartition(".") for name in stored)
    return tuple(module for module, _, key in parts if key == "weight" and module not in known)


def linears_of(
    model: OpenModel, structure: Structure
) -> tuple[list[LinearFacts], list[LinearFacts], list[LinearFacts]]:
    """Facts of the linears that the blocks call, of those that they never call, and of routers.

    A weight that several blocks share is that of the first one's linear that calls it.
    """
    called: list[LinearFacts] = []
    idle: list[LinearFacts] = []
    routers: list[LinearFacts] = []
    for index, block in enumerate(model.skeleton.blocks):
        name = model.skeleton.block_name(index)
        kind = structure.of(index)
        fused = {n: g.names for g in (*kind.groups, *kind.unreached) for n in g.names}
        for path, module in block.named_modules():
            if not is_linear(module) or path in kind.held:
                continue
            together = tuple(f"{name}.{n}" for n in fused.get(path, ()))
            facts = linear_facts(f"{name}.{path}", module, together)
            place = model.place(f"{name}.{path}.weight")
            stored = model.weights.modules.get(facts.name, facts.name)
            facts = replace(
                facts,
                merged=place is not None and not place.is_plain,
                stored="" if stored == facts.name else stored,
                model_type=model.config.model_type,
                shared=bool(model.weights.places_of(facts.name)),
            )
            (called if path in fused else routers if path in kind.routers else idle).append(facts)
    known = {model.weights.module(facts.name) for facts in called}
    rest = [[f for f in found if _is_new(model, f, known)] for found in (idle, routers)]
    return called, rest[0], rest[1]


def _is_new(model: OpenModel, linear: LinearFacts, known: set[str]) -> bool:
    """Whether a linear's weight is not that of another in `known`; it is from now on."""
    path = model.weights.module(linear.name)
    is_new = path not in known
    known.add(path)
    return is_new
