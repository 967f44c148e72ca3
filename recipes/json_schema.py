"""The JSON Schema of a recipe file, with the options of every method."""

from typing import Any

from pydantic import TypeAdapter

from quantkit.core.method import Method
from quantkit.core.registry import load, names
from quantkit.recipes.schema import RecipeFile

REGISTRIES = {"method": "methods", "format": "formats"}


def recipe_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a recipe file: what editors complete and check.

    A file is checked further when it is read: patterns, gates and whether its parts fit together.
    """
    schema = RecipeFile.model_json_schema()
    properties = schema["properties"]
    for key, folder in REGISTRIES.items():
        properties[key] |= {"enum": list(names(folder))}
    for block, unstated in (("SchemeBlock", ()), ("OverrideBlock", (None,))):
        known = {"enum": [*names("grids"), *unstated]}
        schema["$defs"][block]["properties"]["grid"] |= known
    properties["engines"]["items"] |= {"enum": list(names("engines"))}
    properties["extends"] = {"type": "string", "description": "the shipped recipe to start from"}
    methods: list[Method] = [load("methods", name, "METHOD") for name in names("methods")]
    return schema | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "quantkit recipe",
        "required": [],
        "anyOf": [{"required": ["extends"]}, {"required": ["method", "format"]}],
        "allOf": [_only_its_options(method) for method in methods],
    }


def _only_its_options(method: Method) -> dict[str, Any]:
    """Where a recipe names `method`, its options are those of the method and no others."""
    options = TypeAdapter(method.options).json_schema() | {"additionalProperties": False}
    return {
        "if": {"properties": {"method": {"const": method.name}}, "required": ["method"]},
        "then": {"properties": {"options": options}},
    }
