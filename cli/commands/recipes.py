"""List recipes, show one, or print the schema of their files."""

from typing import Annotated

import typer

from quantkit.cli.console import Console
from quantkit.cli.tables import table

EXAMPLES = """\b
Examples:
  quantkit recipes list
  quantkit recipes show gptq-w3 > mine.yaml
  quantkit recipes schema > recipe.schema.json
"""


def list_(console: Console) -> None:
    """List the recipes that need no file."""
    from quantkit.recipes.loader import list_recipes

    found = list_recipes()
    document = [{"name": info.name, "description": info.description} for info in found]
    rows = [(info.name, info.description) for info in found]
    console.result(document, [table(("recipe", "what it does"), rows)])


def show(
    console: Console,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a recipe, or a .yaml file.")],
) -> None:
    """Print a recipe in full, as YAML that `quantize --recipe` takes."""
    from quantkit.recipes.loader import dump_recipe, load_recipe
    from quantkit.recipes.schema import document_of

    recipe = load_recipe(name)
    console.result(document_of(recipe), dump_recipe(recipe))


def schema(console: Console) -> None:
    """Print the JSON Schema of a recipe file, with every method's options."""
    import json

    from quantkit.recipes.json_schema import recipe_schema

    found = recipe_schema()
    console.result(found, json.dumps(found, indent=2))


COMMAND = {"list": list_, "show": show, "schema": schema}
