"""Converts a recipe to the `quantize` flags that produce it."""

import json
import shlex
from typing import Any

from quantkit.core.recipe import Recipe
from quantkit.recipes.loader import Flags, build_recipe, list_recipes, load_recipe
from quantkit.recipes.schema import document_of

SETTINGS = (
    "format", "scheme", "options", "overrides", "calibration", "gates", "gate_policy", "engines",
)  # fmt: skip


def flags_of(recipe: Recipe) -> str:
    """The `quantize` flags for `recipe`, without its name and description.

    They start from the shipped recipe of the same name if that is possible, and else state every
    setting.
    """
    if recipe.name not in [info.name for info in list_recipes()]:
        return _all_stated(recipe)
    base = load_recipe(recipe.name)
    stated = {key: value for key, value in _flags(recipe).items() if value != _flags(base)[key]}
    if build_recipe(recipe.name, **stated) != recipe:
        return _all_stated(recipe)
    words = ["--recipe", recipe.name]
    for key, value in stated.items():
        if key == "symmetric":
            words.append("--symmetric" if value else "--asymmetric")
        else:
            words += [f"--{key.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _all_stated(recipe: Recipe) -> str:
    document = document_of(recipe)
    words = ["--method", recipe.method]
    for key in SETTINGS:
        if document.get(key):
            words += ["--set", f"{key}={json.dumps(document[key])}"]
    return shlex.join(words)


def _flags(recipe: Recipe) -> dict[str, Any]:
    flags: Flags = {
        "method": recipe.method,
        "bits": recipe.scheme.bits,
        "group_size": recipe.scheme.group_size,
        "symmetric": recipe.scheme.symmetric,
        "format": recipe.format,
        "calibration": recipe.calibration.text,
        "samples": recipe.calibration.samples,
        "sequence_length": recipe.calibration.sequence_length,
    }
    return dict(flags)
