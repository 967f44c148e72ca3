"""What the documentation names is there, and what is there is named."""

import re
from pathlib import Path

import pytest

import quantkit
from quantkit.cli.hints import options_of
from quantkit.core import registry
from quantkit.core.errors import QuantkitError
from quantkit.recipes.loader import list_recipes, load_recipe
from quantkit.recipes.schema import GatePolicyBlock, OverrideBlock, RecipeFile, SchemeBlock

DOCS = Path(__file__).parents[1] / "docs"
CLI = (DOCS / "cli.md").read_text(encoding="utf-8")
RECIPES = (DOCS / "recipes.md").read_text(encoding="utf-8")


def options(verb: str) -> set[str]:
    """Long options of a verb, as its signature states them."""
    command = registry.load("cli.commands", verb, "COMMAND")
    functions = command.values() if isinstance(command, dict) else (command,)
    return {option for function in functions for option in options_of(function)}


@pytest.mark.parametrize("verb", registry.names("cli.commands"))
def test_every_verb_and_option_is_documented(verb: str) -> None:
    assert f"    quantkit {verb} " in CLI
    missing = {option for option in options(verb) if f"`{option}`" not in CLI}
    assert not missing


def test_no_documented_option_is_an_invention() -> None:
    known = {"--json", "--quiet", "--debug", "--help", "--dry-run", "--version"}
    known |= {"--install-completion", "--show-completion"}
    for verb in registry.names("cli.commands"):
        known |= options(verb)
    assert {"--reference", "--set", "--no-eval", "--asymmetric"} <= known
    for text in (CLI, RECIPES):
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= known


def test_every_exit_code_is_documented() -> None:
    classes: list[type[QuantkitError]] = [QuantkitError, *QuantkitError.__subclasses__()]
    assert len(classes) > 5
    for kind in classes:
        assert f"| {kind.exit_code} |" in CLI


def test_every_function_named_is_public() -> None:
    names = re.findall(r"`quantkit\.(\w+)`", CLI)
    assert names
    assert set(names) <= set(quantkit.__all__)


def test_the_table_of_recipes_is_that_of_the_files() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| `([\w-]+)` \|$", RECIPES, re.MULTILINE)
    files = [info.name for info in list_recipes() if info.path]
    shipped = {name: load_recipe(name).format for name in files}
    assert dict(rows) == shipped


def test_the_table_of_codes_is_that_of_the_checks() -> None:
    text = (DOCS / "verify.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (\w+) \| (.+) \|$", text, re.MULTILINE)
    checks = {name: registry.load("checks", name, "CHECK") for name in registry.names("checks")}
    assert {code: (stage, summary) for code, stage, summary in rows} == {
        code: (check.stage, check.summary) for code, check in checks.items()
    }
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert f"[{len(checks)} kinds of fault](docs/verify.md)" in readme


def test_the_example_file_states_every_key_and_is_a_recipe(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", RECIPES, re.DOTALL)
    mine = tmp_path / "example.yaml"
    mine.write_text(block, encoding="utf-8")
    recipe = load_recipe(str(mine))
    assert (recipe.name, len(recipe.overrides), len(recipe.gates)) == ("mine", 3, 1)
    blocks = (RecipeFile, SchemeBlock, OverrideBlock, GatePolicyBlock)
    fields = {field for block in blocks for field in block.model_fields}
    assert all(f"{field}:" in block for field in fields)
