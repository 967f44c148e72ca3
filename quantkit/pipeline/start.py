"""From an open model and a recipe to a plan, with the overrides of the model's family."""

from dataclasses import replace

import torch

from quantkit.core.errors import InputError
from quantkit.core.recipe import Recipe
from quantkit.model.opened import OpenModel
from quantkit.pipeline.prepare import Prepared, parts_of, prepare
from quantkit.recipes.loader import build_recipe, with_family


def checked(recipe: Recipe | None) -> Recipe:
    """The recipe, or the default one, after all checks that need no model.

    Raises:
        InputError: the method, format, engine or an option does not exist.
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
    """The device `name`; "auto" is the GPU if there is one, else the CPU.

    Raises:
        InputError: torch cannot use the device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        float(torch.ones(1, device=name))  # a device of shapes alone, such as `meta`, has none
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise InputError(
            f"device `{name}` is not available", why=why, hint="--device cpu"
        ) from error
    return name
