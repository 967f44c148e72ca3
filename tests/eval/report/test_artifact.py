import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.api import quantize
from quantkit.eval.report.artifact import command_of, modules_of, result_of
from quantkit.recipes.loader import build_recipe
from quantkit.recipes.schema import document_of

QUANTIZE = ["quantkit", "quantize", "org/Example-8B@main", "-o", "OUT", "--method"]


@pytest.mark.parametrize("name", ["gptq", "awq", "nf4-double", "smoothquant", "gptq-v2-asym"])
def test_the_command_makes_the_same_recipe_again(name: str) -> None:
    recipe = document_of(build_recipe(name, samples=16, settings=["gates=[kl.mean < 0.05]"]))
    source = {"id": "org/Example-8B", "revision": "main"}
    words = shlex.split(command_of({"recipe": recipe, "source": source}))
    assert words[:6] == QUANTIZE
    again = document_of(build_recipe(method=words[6], settings=words[8::2]))
    told = ("name", "description")
    assert {k: v for k, v in again.items() if k not in told} == {
        k: v for k, v in recipe.items() if k not in told
    }


def test_losses_become_a_row_a_block_and_a_column_a_kind_of_linear() -> None:
    modules: list[dict[str, Any]] = [
        {"name": "model.layers.0.self_attn.q_proj", "loss": 0.1},
        {"name": "model.layers.2.mlp.experts.0.up_proj", "loss": 0.2},
        {"name": "model.layers.2.mlp.experts.1.up_proj", "loss": 0.3},
        {"name": "lm_head", "loss": 0.9},
        {"name": "model.layers.1.self_attn.q_proj", "loss": None},
    ]
    found = modules_of(modules)
    assert found["columns"] == ["q", "up"]
    assert found["relative_output_error"] == [[0.1, None], [None, None], [None, 0.3]]
    assert modules_of([])["relative_output_error"] == []


def test_the_manifest_fills_what_the_evaluation_leaves_open() -> None:
    manifest = {
        "evaluation": {"artifact": {"name": "out", "bytes": 5, "bits_per_weight": None}},
        "recipe": {"method": "gptq"},
        "bytes": 7,
        "bits_per_weight": 4.4,
        "format": "gptq",
    }
    found = result_of(manifest, "given")
    assert found is not None
    assert found["artifact"] == {
        "name": "given",
        "bytes": 5,
        "bits_per_weight": 4.4,
        "method": "gptq",
        "format": "gptq",
    }
    assert result_of({"evaluation": None}, "folder") is None


def test_quantizing_twice_makes_the_same_page(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama")
    recipe = build_recipe("rtn", group_size=32)
    pages = []
    for name in ("one", "other"):
        result = quantize(str(folder), tmp_path / name, recipe=recipe)
        assert result.evaluation is not None
        pages.append((tmp_path / name / "report.html").read_text(encoding="utf-8"))
    assert pages[0] == pages[1]
    assert 'id="c-modules"' in pages[0]
    assert "--method rtn" in pages[0]
