"""The schema of recipe files takes what the loader takes, and knows every method's options."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from quantkit.core import registry
from quantkit.recipes import document as yaml
from quantkit.recipes.json_schema import recipe_schema
from quantkit.recipes.loader import SHIPPED, list_recipes, load_recipe
from quantkit.recipes.schema import document_of

SCHEMA = recipe_schema()


def valid(recipe: dict[str, Any]) -> bool:
    return bool(Draft202012Validator(SCHEMA).is_valid(recipe))


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_file_keeps_it(path: Any) -> None:
    assert valid(yaml.parse(path.read_text(encoding="utf-8"), path.name).data)


@pytest.mark.parametrize("info", list_recipes(), ids=lambda info: info.name)
def test_every_recipe_in_full_keeps_it(info: Any) -> None:
    assert valid(document_of(load_recipe(info.name)))


@pytest.mark.parametrize("name", registry.names("methods"))
def test_options_are_those_of_the_method(name: str) -> None:
    options = registry.load("methods", name, "METHOD").options
    recipe = {"method": name, "format": "gptq"}
    assert valid(recipe | {"options": asdict(options())})
    assert not valid(recipe | {"options": {"no_such_option": 1}})
    text = json.dumps(SCHEMA)
    assert all(f'"{key}"' in text for key in options.__dataclass_fields__)


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"method": "gptq"},
        {"method": "gptr", "format": "gptq"},
        {"method": "gptq", "format": "gguf"},
        {"extends": "gptq", "engines": ["llama.cpp"]},
        {"extends": "gptq", "scheme": {"bits": 9}},
        {"extends": "gptq", "scheme": {"grid": "int5"}},
        {"extends": "gptq", "overrides": [{"match": "*", "grid": "int5"}]},
        {"extends": "gptq", "speed": "high"},
        {"method": "gptq", "format": "gptq", "options": {"damp": "much"}},
    ],
)
def test_faults_are_faults(recipe: dict[str, Any]) -> None:
    assert not valid(recipe)
