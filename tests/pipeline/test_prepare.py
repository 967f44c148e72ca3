"""What an artifact's config tells engines to leave alone."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import quantkit
from quantkit.core.recipe import Override


def matrices(folder: Path) -> set[str]:
    """Modules of an artifact whose weight is a matrix as it was, but for the embedding."""
    with safe_open(folder / "model.safetensors", "pt") as file:
        names = [name for name in file.keys() if name.endswith(".weight") and "embed" not in name]  # noqa: SIM118
        shapes = {name: file.get_slice(name).get_shape() for name in names}
    return {name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2}


@pytest.mark.parametrize(
    ("output", "symmetric", "key"),
    [("compressed-tensors", True, "ignore"), ("awq", False, "modules_to_not_convert")],
)
@pytest.mark.parametrize("family", ["experts_apart", "experts_renamed", "shared_expert"])
def test_every_matrix_that_is_copied_is_named(
    tiny_checkpoint: Callable[..., Path],
    tmp_path: Path,
    family: str,
    output: str,
    symmetric: bool,
    key: str,
) -> None:
    """Routers and draft layers too: vLLM makes quantized linears of all that is not named."""
    source = tiny_checkpoint(family, private=True)
    weights = source / "model.safetensors"
    draft = {"model.layers.9.eh_proj.weight": torch.randn(32, 64)}
    save_file(load_file(weights) | draft, weights, metadata={"format": "pt"})
    recipe = quantkit.build_recipe(
        None, method="rtn", format=output, group_size=32, symmetric=symmetric, samples=0
    )
    folder = quantkit.quantize(str(source), tmp_path / "out", recipe=recipe, evaluate=False).output
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    copied = matrices(folder)
    assert any(name.endswith("gate") for name in copied)
    assert "model.layers.9.eh_proj" in copied
    assert copied <= set(block[key])
    assert not {name for name in block[key] if ".experts." in name}


@pytest.mark.parametrize(
    ("output", "key", "entry"),
    [
        ("gptq", "dynamic", r"-:^model\.layers\.1\.mlp\.experts$"),
        ("awq", "modules_to_not_convert", "model.layers.1.mlp.experts"),
    ],
)
def test_experts_that_are_all_dense_are_named_as_a_list(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, output: str, key: str, entry: str
) -> None:
    """vLLM asks for the list of a block's experts, never for one of them."""
    recipe = quantkit.build_recipe(
        None, method="rtn", format=output, symmetric=output == "gptq", group_size=32, samples=0
    )
    left = (Override("model.layers.1.mlp.experts.*", skip=True),)
    recipe = replace(recipe, overrides=left, allow_partial=True)
    source = str(tiny_checkpoint("experts_apart"))
    folder = quantkit.quantize(source, tmp_path / "out", recipe=recipe, evaluate=False).output
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert [name for name in block[key] if name.endswith(("experts", "experts$"))] == [entry]


def test_vllm_is_not_promised_for_experts_of_a_block_in_several_schemes(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    source = str(tiny_checkpoint("experts_apart"))
    recipe = quantkit.build_recipe(
        None, method="rtn", format="compressed-tensors", group_size=32, samples=0
    )
    mixed = replace(recipe, overrides=(Override("*.experts.*.down_proj", bits=8),))
    result = quantkit.quantize(source, tmp_path / "out", recipe=mixed, evaluate=False)
    assert "one scheme" in (result.engines["vllm"] or "")
    with pytest.raises(quantkit.QuantkitError, match="one scheme"):
        quantkit.dry_run(source, recipe=replace(mixed, engines=("vllm",)))


def test_blocks_are_named_as_stored_where_a_module_of_them_is_renamed(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """Mixtral's first tensors are those of `block_sparse_moe`, which transformers calls `mlp`."""
    recipe = quantkit.build_recipe(None, method="rtn", format="gptq", group_size=32, samples=0)
    recipe = replace(recipe, overrides=(Override("*.o_proj", skip=True),))
    source = str(tiny_checkpoint("experts_renamed"))
    folder = quantkit.quantize(source, tmp_path / "out", recipe=recipe, evaluate=False).output
    block = json.loads((folder / "config.json").read_text())["quantization_config"]
    (listed,) = block["modules_in_block_to_quantize"]
    assert {"self_attn.q_proj", "block_sparse_moe.experts.0.w1"} <= set(listed)
    assert not any("o_proj" in name for name in listed)
