"""What the weights of a build take, by part: the model as it is, or as a recipe would leave it."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from quantkit.checkpoint.stored import DTYPE_BYTES
from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.errors import RefusedError
from quantkit.core.facts import STORED, LinearFacts
from quantkit.core.format import Format
from quantkit.core.method import Method
from quantkit.core.plan import Plan, make_plan
from quantkit.core.recipe import Recipe
from quantkit.core.rules import require_kv_cache, rules_of
from quantkit.core.scheme import Scheme
from quantkit.core.serving import Degrees
from quantkit.planning.model.architecture import Architecture
from quantkit.planning.model.inventory import Inventory
from quantkit.planning.model.parallel import (
    Kind,
    Stage,
    kinds_of,
    rank_count,
    rank_elements,
    rank_facts,
)
from quantkit.recipes.loader import with_family
from quantkit.recipes.options import checked_options

ONE = Degrees()
ADDS_UP = (
    "the source is quantized already: its weights are decoded first, and the loss of both "
    "quantizations adds up"
)
MODEL_DTYPES = {stored: name for name, stored in STORED.items()}
"""Dtypes of models as config files write them, by their names in safetensors."""


@dataclass(frozen=True)
class PlannedModel:
    """A model as planning sees it; `quantized` names its format where it is quantized already.

    `original`: where it is quantized in a format that is known here, the model it was made of,
    from its config, and the build that its files are of it; engines' rules are about these.
    `notes`: what people have to know of its figures. `unbuilt`: why transformers cannot build it,
    as far as that is known; `quantize` needs it to. `served`: what an engine makes of its dtype,
    where the tensors are as that holds them. `decoded` gives the model of `as_dense`.
    """

    name: str
    architecture: Architecture
    inventory: Inventory
    kinds: tuple[Kind, ...]
    quantized: str | None = None
    original: "tuple[PlannedModel, Build] | None" = None
    notes: tuple[str, ...] = ()
    unbuilt: str = ""
    served: str = ""
    decoded: "Callable[[], PlannedModel] | None" = field(default=None, compare=False)

    def as_dense(self) -> "PlannedModel":
        """The model that `quantize` reads: a quantized one in the 16 bits that its codes mean.

        Raises:
            InputError, RefusedError: it does not read this one, or its linears are not known.
        """
        if self.quantized is None:
            return self
        if self.decoded is None:
            raise RefusedError(
                f"`{self.name}` is quantized as {self.quantized}, and its linears are not known",
                hint="the original model, in bf16, fp16 or fp32",
            )
        return self.decoded()


@dataclass(frozen=True)
class Build:
    """What could be deployed: the model as it is (no format), or quantized by a recipe.

    `schemes` maps linears to what they become; where `uniform`, those of a kind all become what its
    first becomes, and only that one is listed.
    """

    name: str
    recipe: Recipe | None = None
    format: Format | None = None
    schemes: Mapping[str, Scheme] = field(default_factory=dict)
    uniform: bool = True

    def schemes_of(self, kind: Kind) -> Mapping[Scheme | None, int]:
        """How many tensors of a kind have each scheme; None is as it is."""
        if not kind.quantizable or self.format is None:
            return {None: kind.count}
        if self.uniform:
            return {self.schemes.get(kind.tensor.linear or ""): kind.count}
        return Counter(self.schemes.get(tensor.linear or "") for tensor in kind.linears)


def planned_model(
    name: str, inventory: Inventory, architecture: Architecture, quantized: str | None = None
) -> PlannedModel:
    """The model with its tensors sorted into kinds."""
    kinds = kinds_of(inventory, architecture)
    notes = tuple(
        f"not counted: {field}, whose size config.json does not give; headers of files do"
        for field in inventory.uncounted
    )
    return PlannedModel(name, architecture, inventory, kinds, quantized, notes=notes)


def stored_build(model: PlannedModel) -> Build:
    """The model as its files hold it."""
    label = model.quantized or model.architecture.dtype.lower()
    return Build(label)


def recipe_build(model: PlannedModel, recipe: Recipe) -> Build:
    """What `recipe` would make of a dense model's linears, by the rules that `quantize` goes by.

    Raises:
        InputError: an override matches nothing.
        RefusedError: format or a target engine of the recipe cannot hold it.
    """
    stated, _ = with_family(recipe, model.architecture.model_type)
    uniform = not stated.overrides
    linears = [
        # where all become the same, so do fused ones, and one of each kind stands for all
        kind.facts(t._replace(fused=()) if uniform else t)
        for kind in model.kinds
        if kind.quantizable
        for t in ((kind.tensor,) if uniform else kind.linears)
    ]
    output, plan = recipe_plan(stated, linears)
    scheme = next(iter(plan.schemes.values()), None)
    label = f"{scheme.label()} ({recipe.name})" if scheme else recipe.name
    return Build(label, recipe, output, plan.schemes, uniform)


def recipe_plan(recipe: Recipe, linears: Sequence[LinearFacts]) -> tuple[Format, Plan]:
    """The format of a recipe, and what becomes of `linears` by the rules `quantize` goes by.

    Raises:
        InputError: an override matches nothing, or the method has no such option.
        RefusedError: method, format or a target engine of the recipe cannot hold it.
    """
    output: Format = registry.load("formats", recipe.format, "FORMAT")
    engines: list[Engine] = [registry.load("engines", n, "ENGINE") for n in recipe.engines]
    method: Method = registry.load("methods", recipe.method, "METHOD")
    require_kv_cache(recipe.kv_cache, output, engines)
    checked_options(method, recipe)
    return output, make_plan(recipe, linears, rules_of(method, output, engines))


def weigh(
    model: PlannedModel,
    build: Build,
    degrees: Degrees = ONE,
    stage: Stage | None = None,
    *,
    padded: bool = False,
) -> dict[str, int]:
    """Bytes of a rank's weights by part; of all of them where the degrees are 1.

    `padded`: whether the vocabulary is, as vLLM and SGLang do it.
    """
    parts: dict[str, int] = {}
    tied = model.architecture.tied
    for kind in model.kinds:
        if stage is None or stage.holds(kind.tensor, tied=tied):
            size = kind_bytes(build, kind, degrees, padded=padded)
            parts[kind.tensor.part] = parts.get(kind.tensor.part, 0) + size
    return parts


def weights_rule(model: PlannedModel, build: Build, whose: str) -> str:
    """The rule by which bytes of weights are counted, as a sentence; `whose` they are."""
    how = [f"sum over {whose} tensors, {model.inventory.origin}"]
    if build.format is not None:
        how.append(f"linears as {build.format.name} stores {build.name}")
    return "; ".join([*how, model.served] if model.served else how)


def kind_bytes(build: Build, kind: Kind, degrees: Degrees = ONE, *, padded: bool = False) -> int:
    """Bytes that a rank holds of all tensors of a kind."""
    total, share = 0, rank_count(kind, degrees)
    for scheme, count in build.schemes_of(kind).items():
        if scheme is None:
            elements = rank_elements(kind, degrees, padded=padded)
            one = elements * DTYPE_BYTES[kind.tensor.dtype]
        else:
            one = quantized_bytes(build, kind, scheme, degrees)
        total += one * count * share // kind.count
    return total


def quantized_bytes(build: Build, kind: Kind, scheme: Scheme, degrees: Degrees = ONE) -> int:
    """Bytes of a rank's slice of a linear in the format of a build."""
    assert build.format is not None
    dtype = MODEL_DTYPES.get(kind.tensor.dtype, "bfloat16")
    layout = build.format.layout(scheme, rank_facts(kind, degrees), dtype)
    return sum(DTYPE_BYTES[stored] * math.prod(shape) for stored, shape in layout.values())
