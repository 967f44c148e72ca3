"""What a recipe would make of a model: counted by linear, and faults before any run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import quantkit
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.recipe import Recipe
from quantkit.core.serving import Load
from quantkit.model.open import open_model as read_weights
from quantkit.planning.builds import plan_builds
from quantkit.planning.lint import lint
from quantkit.planning.model.opened import open_model
from quantkit.planning.model.weights import PlannedModel
from quantkit.recipes.loader import load_recipe
from tests.float_forms import FORMS, rewrite

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


@pytest.mark.parametrize("family", ["llama", "experts_apart"])
@pytest.mark.parametrize("form", FORMS)
def test_a_quantized_source_is_checked_as_the_model_that_it_means(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, form: str, family: str
) -> None:
    folder = tiny_checkpoint(family, private=True, dtype="bfloat16")
    mine = recipe(tmp_path, '{match: "*.down_proj", bits: 8}', '{match: "*", group_size: 16}')
    dense = open_model(str(folder))
    rewrite(folder, form)
    coded = open_model(str(folder))
    found = lint(mine, coded)
    assert found.becomes == lint(mine, dense).becomes
    assert found.share == 1
    assert any("adds up" in note for note in found.notes)
    made = [plan_builds(each, [mine], None, Load(1), requested=True) for each in (coded, dense)]
    sizes = [[b.bytes for b in p.serving.builds if b.recipe] for p in made if p.serving]
    assert sizes[0] == sizes[1]


def test_an_artifact_is_checked_as_the_model_that_it_was(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama")
    own = quantkit.build_recipe("rtn", group_size=16)
    quantkit.quantize(str(folder), tmp_path / "out", recipe=own, evaluate=False, device="cpu")
    found = lint(own, open_model(str(tmp_path / "out")))
    assert found.becomes == lint(own, open_model(str(folder))).becomes


@pytest.mark.parametrize("method", ["hqq", "fp8"])
def test_what_quantize_does_not_read_is_refused_in_its_words(
    tiny_checkpoint: Callable[..., Path], method: str
) -> None:
    """Of a method that is not known, and of one that its tensors do not bear out."""
    folder = tiny_checkpoint("llama", private=True)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": {"quant_method": method}}
    path.write_text(json.dumps(config))
    said = []
    for job in (
        lambda: read_weights(folder),
        lambda: lint(load_recipe("rtn"), open_model(str(folder))),
    ):
        with pytest.raises(RefusedError) as error:
            job()
        said.append((error.value.why, error.value.hint))
    assert said[0] == said[1]
