"""What a recipe would make of a model, by the names and shapes of its linears alone."""

from collections import Counter
from dataclasses import dataclass

from quantkit.core.recipe import Override, Recipe
from quantkit.planning.model.weights import PlannedModel, recipe_plan
from quantkit.recipes.loader import with_family


@dataclass(frozen=True)
class Covered:
    """An override, and how many linears it is the last to cover."""

    override: Override
    linears: int


@dataclass(frozen=True)
class Lint:
    """Linears of the blocks by what they become (a scheme's label, or why they stay as they are).

    `overrides`: those of the recipe, then the model family's. `notes`: for people.
    """

    becomes: dict[str, int]
    overrides: tuple[Covered, ...]
    share: float
    notes: tuple[str, ...]


def lint(recipe: Recipe, model: PlannedModel) -> Lint:
    """What `recipe` makes of each linear of a model, as `quantize` decides it.

    Raises:
        InputError: an override matches nothing, or the method has no such option.
        RefusedError: the model is quantized in a way that `quantize` does not read, or method,
            format or a target engine cannot hold what the recipe asks for.
    """
    model = model.as_dense()
    stated, notes = with_family(recipe, model.architecture.model_type)
    linears = [kind.facts(tensor) for kind in model.kinds for tensor in kind.linears]
    _, plan = recipe_plan(stated, linears)
    becomes = Counter(
        each.scheme.label() if each.scheme else each.reason for each in plan.dispositions
    )
    last = Counter(
        max((i for i, rule in enumerate(stated.overrides) if rule.covers(facts.name)), default=-1)
        for facts in linears
    )
    overrides = tuple(Covered(rule, last[i]) for i, rule in enumerate(stated.overrides))
    unbuilt = (f"quantize does not take this model: {model.unbuilt}",) if model.unbuilt else ()
    found = tuple(dict.fromkeys((*model.notes, *notes, *plan.remarks, *unbuilt)))
    return Lint(dict(becomes), overrides, plan.share, found)
