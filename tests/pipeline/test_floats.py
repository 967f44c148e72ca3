"""Whole runs in floats on tiny models: recipes, folding, experts, static scales."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import quantkit
from quantkit.core.errors import InputError
from quantkit.model.open import open_model

SHORT: dict[str, Any] = {"samples": 4, "sequence_length": 64}
IDS = torch.randint(2, 250, (2, 64), generator=torch.Generator().manual_seed(0))
FOUR, EIGHT = 0.6, 0.15
"""Largest change of hidden states, of their norm, on a random model."""
RECIPES = {
    "fp8": EIGHT,
    "fp8-block": EIGHT,
    "fp8-static": EIGHT,
    "mxfp8": EIGHT,
    "mxfp4": FOUR,
    "nvfp4": FOUR,
    "nvfp4-w4a16": FOUR,
}
FOLDED = ("mxfp4", "mxfp8", "nvfp4", "fp8-static", "fp8-block")


def changed(folder: Path, out: Path) -> float:
    """Change of the last hidden states, in units of their norm."""
    before, after = (open_model(each).hidden_states(IDS).float() for each in (folder, out))
    return float((after - before).norm() / before.norm())


def made(folder: Path, out: Path, recipe: str, **changes: Any) -> None:
    wanted = quantkit.build_recipe(recipe, **(SHORT | changes))
    quantkit.quantize(str(folder), out, recipe=wanted, evaluate=False)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_stays_near_the_original(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, recipe: str
) -> None:
    folder = tiny_checkpoint("llama", dtype="bfloat16")
    made(folder, tmp_path / "out", recipe)
    assert 0 < changed(folder, tmp_path / "out") < RECIPES[recipe]


@pytest.mark.parametrize("recipe", FOLDED)
def test_awq_folds_no_scales_into_codes(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, recipe: str
) -> None:
    """Scales that are codes, or shared by rows, cannot be divided row by row."""
    folder = tiny_checkpoint("llama", dtype="bfloat16")
    made(folder, tmp_path / "out", recipe, method="awq")
    assert 0 < changed(folder, tmp_path / "out") < RECIPES[recipe]


@pytest.mark.parametrize("recipe", ["nvfp4", "fp8-static"])
def test_experts_that_few_tokens_reach_have_static_scales(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, recipe: str
) -> None:
    folder = tiny_checkpoint("experts_fused", dtype="bfloat16")
    made(folder, tmp_path / "out", recipe, samples=1)
    artifact = open_model(tmp_path / "out")
    scheme = quantkit.build_recipe(recipe).scheme
    found = [n for n in artifact.checkpoint.names if "experts" in n and "input_" in n]
    assert found
    for name in found:
        scale = artifact.checkpoint.tensor(name)
        assert torch.isfinite(scale).all()
        assert (scale > 0).all()
    assert scheme.activation in ("nvfp4", "fp8-tensor")


def test_static_scales_need_text(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="calibration text") as error:
        made(tiny_checkpoint("llama"), tmp_path / "out", "fp8-static", samples=0)
    assert "--samples" in (error.value.hint or "")


@pytest.mark.parametrize("layout", ["modelopt", "compressed-tensors"])
def test_layouts_of_one_result_give_the_same_states(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, layout: str
) -> None:
    folder = tiny_checkpoint("llama", dtype="bfloat16")
    made(folder, tmp_path / "one", "nvfp4", format=layout)
    made(folder, tmp_path / "other", "nvfp4")
    one, other = (open_model(tmp_path / n).hidden_states(IDS) for n in ("one", "other"))
    assert torch.equal(one, other)
