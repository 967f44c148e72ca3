"""NVFP4, per-tensor fp8 and MXFP4 from a config alone: bytes, what stays, and what is refused."""

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from quantkit.checkpoint.stored import DTYPE_BYTES
from quantkit.core.errors import InputError
from quantkit.planning.model.blockwise import block_fp8
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.inventory import Inventory
from quantkit.planning.model.opened import open_model
from quantkit.planning.model.packed import modelopt, mxfp4
from quantkit.planning.model.parameters import inventory_from_config

PUBLISHED = {"gpt-oss-20b": 13_761_264_768, "gpt-oss-120b": 65_248_815_744}
"""Bytes of the tensors in the files on the hub."""


def size(inventory: Inventory) -> int:
    return sum(prod(t.shape) * DTYPE_BYTES[t.dtype] for t in inventory.tensors)


def plain(known_models: dict[str, Any], name: str) -> Inventory:
    config = known_models[name]["config"]
    return inventory_from_config(config, read_architecture(config))


@pytest.mark.parametrize("name", PUBLISHED)
def test_experts_in_mxfp4_weigh_what_the_files_do(name: str, known_models: dict[str, Any]) -> None:
    stored = mxfp4({"quant_method": "mxfp4"}, plain(known_models, name))
    assert stored is not None
    assert size(stored) == PUBLISHED[name]


@pytest.mark.parametrize(("algo", "bits"), [("NVFP4", 4.5), ("FP8", 8)])
def test_linears_in_the_formats_of_modelopt(
    algo: str, bits: float, known_models: dict[str, Any]
) -> None:
    whole = plain(known_models, "Llama-3-8B")
    block = {"quant_method": "modelopt", "quant_algo": algo, "exclude_modules": ["lm_head"]}
    stored = modelopt(block, whole)
    assert stored is not None
    linears = [t for t in whole.tensors if t.linear and t.layer is not None]
    saved = sum(prod(t.shape) * (2 - bits / 8) for t in linears)
    assert size(stored) == size(whole) - saved + 8 * len(linears)
    kept = modelopt(block | {"exclude_modules": ["model.layers.3*", "*.o_proj"]}, whole)
    assert kept is not None
    stays = {t.linear for t in kept.tensors if t.linear and t.layer is not None}
    outputs = {f"model.layers.{i}.self_attn.o_proj" for i in range(32)}
    third = {t.linear for t in linears if t.layer in (3, 30, 31)}
    assert stays == outputs | third


@pytest.mark.parametrize(
    "changes",
    [
        {"exclude_modules": None},
        {"exclude_modules": ["model.layers.0.block.q"]},
        {"quant_algo": "MIXED_PRECISION"},
        {"quantized_layers": {"model.layers.0.mlp": {}}},
        {"quant_method": "awq"},
    ],
)
def test_what_does_not_say_which_linears_stay_is_not_read(
    changes: dict[str, Any], known_models: dict[str, Any]
) -> None:
    block = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": []}
    whole = plain(known_models, "Llama-3-8B")
    assert modelopt(block, whole) is not None
    assert modelopt(block | changes, whole) is None


def test_experts_in_4_bits_beside_block_wise_fp8(small: Callable[[str], Any]) -> None:
    config = small("deepseek-v3").to_dict() | {"dtype": "bfloat16"}
    architecture = read_architecture(config)
    whole = inventory_from_config(config, architecture)
    block = {"quant_method": "fp8", "weight_block_size": [128, 128], "expert_dtype": "fp4"}
    stored = block_fp8(block, whole, architecture)
    assert stored is not None
    experts = [t for t in stored.tensors if t.part == "experts"]
    assert {t.dtype for t in experts} == {"U8", "F8_E8M0"}
    others = {t.dtype for t in stored.tensors if t.part in ("attention", "mlp")}
    assert others == {"F8_E4M3", "F8_E8M0"}
    assert block_fp8(block | {"expert_dtype": "int3"}, whole, architecture) is None


def test_the_file_of_modelopt_beside_a_config_is_read(
    tmp_path: Path, known_models: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(known_models["Llama-3-8B"]["config"]))
    assert open_model(str(tmp_path)).quantized is None
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text('{"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}')
    model = open_model(str(tmp_path))
    assert model.quantized == "modelopt"
    assert size(model.inventory) < 9.2e9
    beside.write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    with pytest.raises(InputError, match="is quantized as modelopt"):
        open_model(str(tmp_path))
