"""What a recipe would make of a model: counted by linear, and faults before any run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.recipe import Recipe
from quantkit.planning.lint import lint
from quantkit.planning.model.weights import PlannedModel
from quantkit.recipes.loader import load_recipe

Planned = Callable[..., PlannedModel]


def recipe(folder: Path, *overrides: str) -> Recipe:
    path = folder / "mine.yaml"
    rules = "".join(f"  - {rule}\n" for rule in overrides)
    path.write_text(f"extends: gptq\noverrides:\n{rules}")
    return load_recipe(str(path))


def test_every_linear_is_counted_once(planned: Planned, tmp_path: Path) -> None:
    wide, all_, first = (
        '{match: "*.down_proj", bits: 8}',
        '{match: "*_proj", bits: 3}',
        '{match: "re:.*layers[.]0[.].*", skip: true}',
    )
    found = lint(recipe(tmp_path, wide, all_, first), planned("Llama-3-8B"))
    assert found.becomes == {"left out by the recipe": 7, "W3 g128 sym": 31 * 7}
    assert [each.linears for each in found.overrides] == [0, 31 * 7, 7]
    assert found.share == 1


def test_experts_are_linears(planned: Planned) -> None:
    found = lint(load_recipe("gptq"), planned("Mixtral-8x7B"))
    assert found.becomes == {"W4 g128 sym": 32 * (4 + 8 * 3)}


def test_rules_of_the_family_hold(planned: Planned) -> None:
    found = lint(load_recipe("gptq"), planned("Gemma-3-27B"))
    assert any("overflow float16" in note for note in found.notes)


def test_what_does_not_go_is_told_before_a_run(planned: Planned, tmp_path: Path) -> None:
    model = planned("Llama-3-8B")
    with pytest.raises(InputError, match=r"`\*\.w1` matches no linear"):
        lint(recipe(tmp_path, '{match: "*.w1", bits: 8}'), model)
    with pytest.raises(RefusedError, match="group size 96"):
        lint(recipe(tmp_path, '{match: "*.q_proj", group_size: 96}'), model)
