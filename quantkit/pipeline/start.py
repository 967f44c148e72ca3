"""From an open model and a recipe to a plan that can run, with what its family adds."""

from dataclasses import replace

import torch

from quantkit.core.errors import InputError
from quantkit.core.recipe import Recipe
from quantkit.model.opened import OpenModel
from quantkit.pipeline.prepare import Prepared, parts_of, prepare
from quantkit.recipes.loader import build_recipe, with_family


def checked(recipe: Recipe | None) -> Recipe:
    """The recipe, or the default one, with all that needs no model checked.

    Raises:
        InputError: no such method, format, engine or option.
    """
    wanted = recipe or build_recipe()
    parts_of(wanted)
    return wanted


def start(model: OpenModel, recipe: Recipe) -> Prepared:
    """The plan for the recipe, with the overrides and the notes of the model's family.

    Raises:
        InputError, RefusedError: as `prepare`.
    """
    stated, notes = with_family(recipe, model.config.model_type)
    prepared = prepare(model, stated)
    remarks = (*prepared.plan.remarks, *notes)
    return replace(prepared, plan=replace(prepared.plan, remarks=remarks))


def device_of(name: str) -> str:
    """The device called `name`; "auto" is the GPU if there is one.

    Raises:
        InputError: there is none of that name.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"no device `{name}`", why=why, hint="--device cpu") from error
    return name
