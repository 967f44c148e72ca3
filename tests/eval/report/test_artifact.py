from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit import quantize
from quantkit.eval.report.artifact import command_of, result_of
from quantkit.recipes.loader import build_recipe
from quantkit.recipes.schema import document_of


def test_the_command_names_model_and_recipe() -> None:
    recipe = document_of(build_recipe("awq", samples=16))
    source = {"id": "org/Example-8B", "revision": "main"}
    command = "quantkit quantize org/Example-8B@main -o OUT --recipe awq --samples 16"
    assert command_of({"recipe": recipe, "source": source}) == command
    assert command_of({"source": source}) == ""


def test_the_manifest_fills_what_the_evaluation_leaves_open() -> None:
    manifest = {
        "evaluation": {"artifact": {"name": "out", "bytes": 5, "bits_per_weight": None}},
        "recipe": {"method": "gptq"},
        "bytes": 7,
        "bits_per_weight": 4.4,
        "quantized_bits_per_weight": 4.25,
        "format": "gptq",
    }
    found = result_of(manifest, "given")
    assert found is not None
    assert found["artifact"] == {
        "name": "given",
        "bytes": 5,
        "bits_per_weight": 4.4,
        "quantized_bits_per_weight": 4.25,
        "method": "gptq",
        "format": "gptq",
    }
    assert result_of({"evaluation": None}, "folder") is None


@pytest.mark.long
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
    assert "--recipe rtn" in pages[0]
