"""The plan of `quantize`, from the headers or the config of a model alone."""

from dataclasses import replace

from quantkit.checkpoint.shards import DEFAULT_SHARD_SIZE
from quantkit.core import registry
from quantkit.core.errors import RefusedError
from quantkit.core.plan import Plan
from quantkit.core.recipe import Recipe
from quantkit.planning.model.inventory import Inventory
from quantkit.planning.model.parallel import facts_of
from quantkit.planning.model.weights import MODEL_DTYPES, PlannedModel, recipe_plan
from quantkit.planning.run.estimate import on_machine
from quantkit.planning.run.files import Run, plan_run, quantized_by
from quantkit.planning.run.timing import recall
from quantkit.recipes.loader import with_family


def plan_quantization(
    model: PlannedModel, recipe: Recipe, max_shard_size: int = DEFAULT_SHARD_SIZE
) -> Plan:
    """The plan of `quantize` with `recipe` on this machine's CPU, from headers or config alone.

    Raises:
        InputError, RefusedError: as `quantize`, as far as headers show it.
    """
    run = run_of(model, recipe, max_shard_size)
    transposed = any(kind.transposed for kind in model.kinds)
    stated, _ = with_family(recipe, model.architecture.model_type)
    kind = model.architecture.model_type
    plan = plan_linears(model.inventory, stated, transposed=transposed, model_type=kind)
    files, memory, time = plan_run(model.inventory, quantized_by(plan, model.inventory), run)
    return on_machine(replace(plan, files=files, memory=memory, time=time), recall())


def run_of(model: PlannedModel, recipe: Recipe, max_shard_size: int) -> Run:
    """How `quantize` runs `recipe` on a CPU, from what planning knows of a model.

    Raises:
        RefusedError: `quantize` does not take the model.
    """
    if model.unbuilt:
        raise RefusedError(
            f"`{model.name}` is not quantized here",
            why=model.unbuilt,
            hint="a published quantized checkpoint of it, or a model that transformers has",
        )
    shape, spec = model.architecture, recipe.calibration
    return Run(
        method=registry.load("methods", recipe.method, "METHOD"),
        output=registry.load("formats", recipe.format, "FORMAT"),
        hidden=shape.hidden,
        dtype=_own_dtype(model),
        windows=spec.samples,
        length=min(spec.sequence_length, shape.context or spec.sequence_length),
        max_shard_size=max_shard_size,
        compensate=spec.compensate,
    )


def _own_dtype(model: PlannedModel) -> str:
    """The dtype of the embedding, which no format quantizes: what `quantize` takes for the model's.

    Raises:
        RefusedError: there is no embedding, or it is of a dtype that is not computed in.
    """
    dtype = next((t.dtype for t in model.inventory.tensors if t.part == "embedding"), None)
    if dtype not in MODEL_DTYPES:
        what = "has no embedding that planning knows" if dtype is None else f"is stored in {dtype}"
        raise RefusedError(
            f"`{model.name}` {what}",
            why="quantize computes in the dtype of the embedding",
            hint="a model in bf16, fp16 or fp32",
        )
    return dtype


def plan_linears(
    inventory: Inventory, recipe: Recipe, *, transposed: bool = False, model_type: str = ""
) -> Plan:
    """What becomes of the linears of the blocks, by the rules that `quantize` goes by.

    `transposed`: weights are stored (inputs, outputs), as GPT-2's are.

    Raises:
        InputError: an override matches nothing.
        RefusedError: format or a target engine of the recipe cannot hold it.
    """
    linears = [
        facts_of(t, transposed=transposed, model_type=model_type)
        for t in inventory.tensors
        if t.linear and t.layer is not None and t.part in ("attention", "mlp", "experts")
    ]
    return recipe_plan(recipe, linears)[1]
