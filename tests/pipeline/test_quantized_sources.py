"""A source that is quantized already gives the artifact of the dense model that it means."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import quantkit
from quantkit.core.recipe import Override
from quantkit.model.open import open_model
from tests.float_forms import FORMS, rewrite

WEIGHTS = "model.safetensors"
QUICK: dict[str, Any] = {"samples": 4, "sequence_length": 64}
DENSE = {"quantized", "rescaled", "copied"}


def made(
    source: Path, output: Path, *, overrides: tuple[Override, ...] = (), **recipe: Any
) -> dict[str, Any]:
    """Quantize without an evaluation; the manifest."""
    wanted = replace(quantkit.build_recipe(None, **(QUICK | recipe)), overrides=overrides)
    quantkit.quantize(str(source), output, recipe=wanted, evaluate=False)
    manifest: dict[str, Any] = json.loads((output / "quantkit.json").read_text())
    return manifest


def decode_into(twin: Path, folder: Path) -> None:
    """Give the dense checkpoint `twin` the weights that `folder` means."""
    source = open_model(folder).dense().checkpoint
    tensors = {name: source.tensor(name) for name in load_file(twin / WEIGHTS)}
    save_file(tensors, twin / WEIGHTS, metadata={"format": "pt"})


def same(one: Path, other: Path) -> bool:
    """Whether two artifacts hold the same weights, and state the same of them."""
    return all(
        (one / name).read_bytes() == (other / name).read_bytes()
        for name in (WEIGHTS, "config.json")
    )


@pytest.mark.parametrize("form", FORMS)
def test_floats_give_the_bytes_of_their_dense_twin(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, form: str
) -> None:
    folder = tiny_checkpoint("experts_apart", private=True, dtype="bfloat16")
    twin = tiny_checkpoint("experts_apart", private=True, dtype="bfloat16")
    rewrite(folder, form)
    decode_into(twin, folder)
    manifest = made(folder, tmp_path / "coded", method="gptq")
    plain = made(twin, tmp_path / "dense", method="gptq")
    assert same(tmp_path / "coded", tmp_path / "dense")
    assert not list((tmp_path / "coded").glob("hf_quant_config.json"))
    assert any("quantized already" in remark for remark in manifest["remarks"])
    assert not any("quantized already" in remark for remark in plain["remarks"])


@pytest.mark.parametrize("form", FORMS)
def test_the_ledger_says_what_became_of_every_stored_tensor(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, form: str
) -> None:
    folder = tiny_checkpoint("experts_apart", private=True, dtype="bfloat16")
    rewrite(folder, form)
    found = made(folder, tmp_path / "out", method="rtn")["tensors"]
    stored = load_file(folder / WEIGHTS)
    assert set(stored) <= set(found)
    for name, what in found.items():
        if name.endswith(("input_scale", "input_global_scale")):
            assert what == "dropped"
        elif name.endswith(("_scale", "_scale_inv", "_scale_2", "_global_scale", "_packed")):
            assert what == "merged"
        else:
            assert what in DENSE


def test_linears_that_stay_dense_are_written_decoded(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("llama", private=True, dtype="bfloat16")
    meant = rewrite(folder, "fp8_block")
    name = "model.layers.0.self_attn.o_proj.weight"
    left_out = (Override("*o_proj", skip=True),)
    manifest = made(folder, tmp_path / "out", method="rtn", overrides=left_out)
    assert manifest["tensors"][name] == "decoded"
    assert load_file(tmp_path / "out" / WEIGHTS)[name].equal(meant[name].bfloat16())


@pytest.mark.parametrize(
    "first",
    [
        {"method": "gptq"},
        {"method": "awq", "format": "awq"},
        {"method": "rtn", "format": "compressed-tensors", "bits": 8},
        {"method": "nf4"},
        {"method": "smoothquant"},
    ],
    ids=lambda recipe: str(recipe["method"]),
)
@pytest.mark.parametrize("family", ["llama", "experts_fused"])
def test_an_artifact_is_quantized_again_as_the_model_that_it_decodes_to(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, first: dict[str, Any], family: str
) -> None:
    original = tiny_checkpoint(family, dtype="bfloat16")
    made(original, tmp_path / "first", **first)
    folder = tmp_path / "first"
    manifest = made(folder, tmp_path / "again", method="gptq", bits=3, format="compressed-tensors")
    model = open_model(tmp_path / "again")
    source = open_model(folder).dense()
    packed = load_file(folder / WEIGHTS)
    assert set(packed) <= set(manifest["tensors"])
    assert {what for n, what in manifest["tensors"].items() if n not in packed} <= DENSE
    assert {m["scheme"] for m in manifest["modules"]} == {"W3 g128 sym"}
    linear = manifest["modules"][0]["name"]
    assert model.scheme(linear) is not None
    assert source.scheme(linear) is None
    weight, again = source.stored(f"{linear}.weight"), model.parameter(f"{linear}.weight")
    error = (weight.float() - again.float()).norm() / weight.float().norm()
    assert 0 < error < 0.4


def test_the_same_grid_again_changes_nothing_that_matters(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """Weights on a grid stay there: rtn at 8 bits of a 4-bit artifact adds little."""
    folder = tiny_checkpoint("llama", dtype="bfloat16")
    made(folder, tmp_path / "first", method="rtn")
    made(tmp_path / "first", tmp_path / "again", method="rtn", bits=8)
    name = "model.layers.1.mlp.down_proj.weight"
    first = open_model(tmp_path / "first").parameter(name).float()
    again = open_model(tmp_path / "again").parameter(name).float()
    assert (first - again).norm() < 0.01 * first.norm()
