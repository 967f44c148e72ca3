"""What a family's file states holds wherever a recipe is planned or run."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import quantkit
from quantkit.core.recipe import Override, Recipe
from quantkit.core.scheme import Scheme
from quantkit.model.open import open_model as open_folder
from quantkit.pipeline.choices import choices_of
from quantkit.pipeline.start import start
from quantkit.planning.model.opened import open_model
from quantkit.planning.model.weights import recipe_build
from quantkit.planning.run.quantization import plan_quantization
from quantkit.recipes import loader
from quantkit.recipes.loader import build_recipe, load_family, with_family
from quantkit.runs.forecast import plan_prepared

FAMILY = """\
model_types: [llama]
notes: [this one is delicate]
overrides:
  - {match: "*.0.mlp.down_proj", skip: true}
  - {match: "*.o_proj", bits: 8, group_size: channel}
"""
SHARD = 5 * 10**9


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped recipes with one more family."""
    folder = tmp_path / "recipes"
    shutil.copytree(loader.SHIPPED, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (folder / "families" / "delicate.yaml").write_text(FAMILY, encoding="utf-8")
    monkeypatch.setattr(loader, "SHIPPED", folder)
    return folder


@pytest.fixture
def folder(tiny_checkpoint: Callable[..., Path]) -> Path:
    return tiny_checkpoint("llama", dtype="bfloat16")


def recipe() -> Recipe:
    return build_recipe("gptq-compressed", group_size=64, samples=4, sequence_length=64)


@pytest.mark.usefixtures("family")
def test_its_overrides_come_before_the_recipe_s_own(folder: Path) -> None:
    mine = Override("*.o_proj", bits=4, group_size=32)
    stated, notes = with_family(recipe(), "llama")
    assert notes == ("this one is delicate",)
    assert [override.match for override in stated.overrides] == ["*.0.mlp.down_proj", "*.o_proj"]
    both = build_recipe("gptq-compressed", settings=["overrides=[{match: '*.o_proj', bits: 4}]"])
    schemes = quantkit.dry_run(str(folder), recipe=both).schemes
    assert schemes["model.layers.0.self_attn.o_proj"].bits == mine.bits


def test_a_model_of_no_family_keeps_its_recipe() -> None:
    assert load_family("of-no-family") is None
    assert with_family(recipe(), "of-no-family") == (recipe(), ())


@pytest.mark.usefixtures("family")
def test_plan_dry_run_and_run_decide_alike(folder: Path, tmp_path: Path) -> None:
    dry = quantkit.dry_run(str(folder), recipe=recipe())
    assert "model.layers.0.mlp.down_proj" in dry.skipped
    assert dry.schemes["model.layers.1.self_attn.o_proj"] == Scheme("int", 8, None)
    assert "this one is delicate" in dry.remarks

    model = open_model(str(folder))
    assert recipe_build(model, recipe()).schemes == dry.schemes
    assert "this one is delicate" in model.notes
    found = quantkit.plan(str(folder), recipes=[recipe()])
    assert found.schemes == dry.schemes

    planned = plan_quantization(model, recipe(), SHARD)
    assert (
        planned.files == plan_prepared(start(open_folder(folder), recipe()), (4, 64), SHARD).files
    )
    result = quantkit.quantize(str(folder), tmp_path / "out", recipe=recipe(), evaluate=False)
    assert planned.files is not None
    assert result.bytes == planned.files.bytes
    assert {m["name"]: m["scheme"] for m in result.modules} == {
        name: scheme.label() for name, scheme in dry.schemes.items()
    }


@pytest.mark.usefixtures("family")
def test_fit_chooses_among_what_it_leaves(folder: Path) -> None:
    wide, narrow = Scheme("int", 8, None), Scheme("int", 4, 32)
    found = start(open_folder(folder), recipe())
    quantized = [fate.linear for fate in found.plan.dispositions if fate.scheme is not None]
    overrides = found.plan.recipe.overrides
    parts = found.model.skeleton, found.structure
    choices = choices_of(quantized, *parts, [narrow, wide], [], overrides)
    by_name = {linear.name: choice.schemes for choice in choices for linear in choice.linears}
    assert "model.layers.0.mlp.down_proj" not in by_name
    assert by_name["model.layers.1.mlp.down_proj"] == (narrow, wide, None)
    assert by_name["model.layers.1.self_attn.o_proj"] == (wide, None)
