"""List, show and check recipes, or print the schema of the file."""

from typing import Annotated

import typer

from quantkit.cli.console import Console
from quantkit.cli.tables import Part, table

EXAMPLES = """\b
Examples:
  quantkit recipes list
  quantkit recipes show gptq-w3 > mine.yaml
  quantkit recipes lint mine.yaml --model ./model
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


def lint(
    console: Console,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a recipe, or a .yaml file.")],
    model: Annotated[
        str | None, typer.Option(help="Folder, config.json, or org/name: what becomes of it.")
    ] = None,
) -> None:
    """Check a recipe, and what it makes of a model's linears, without reading weights."""
    from quantkit.recipes.loader import load_recipe

    recipe = load_recipe(name)
    if model is None:
        console.result({"recipe": recipe.name}, [f"{recipe.name}: a valid recipe"])
        return
    from quantkit.planning.lint import lint as check
    from quantkit.planning.model.opened import open_model

    found = check(recipe, open_model(model))
    rules = [{"match": each.override.match, "linears": each.linears} for each in found.overrides]
    document = {"recipe": recipe.name, "becomes": found.becomes, "overrides": rules}
    lines: list[Part] = [
        table(("linears", "become"), [(n, label) for label, n in found.becomes.items()])
    ]
    if rules:
        lines.append("")
        rows = [(each.linears, each.override.match) for each in found.overrides]
        lines.append(table(("linears", "decided by override"), rows))
    lines += [
        "",
        f"{found.share:.1%} of the linear weights that the recipe does not skip are quantized",
    ]
    console.result(document | {"share": found.share, "notes": found.notes}, [*lines, *found.notes])


def schema(console: Console) -> None:
    """Print the JSON Schema of a recipe file, with every method's options."""
    import json

    from quantkit.recipes.json_schema import recipe_schema

    found = recipe_schema()
    console.result(found, json.dumps(found, indent=2))


COMMAND = {"list": list_, "show": show, "lint": lint, "schema": schema}
