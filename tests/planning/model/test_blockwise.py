"""Block-wise fp8 from a config alone, against the headers of files that hold the same tensors."""

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest

from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import InputError
from quantkit.core.serving import Degrees, Load
from quantkit.planning.model.blockwise import block_fp8
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.headers import inventory_from_headers
from quantkit.planning.model.opened import open_model
from quantkit.planning.model.parameters import inventory_from_config
from quantkit.planning.serve.place import named_place
from tests.planning.conftest import serving_of

BLOCK: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
}
IN_16_BITS = ("embed_tokens", "norm", "mlp.gate.", "lm_head")


def tensors_of_files(config: dict[str, Any], stays: tuple[str, ...]) -> dict[str, TensorInfo]:
    """What files hold of a DeepSeek-V3: scales for tiles of 16 x 32 beside all but `stays`."""
    plain = inventory_from_config(config, read_architecture(config))
    found: dict[str, TensorInfo] = {}
    for tensor in plain.tensors:
        name, shape = tensor.name, tensor.shape
        if any(word in name for word in stays):
            found[name] = TensorInfo(tensor.dtype, shape, "model.safetensors", 0, 0)
        else:
            tiles = ((shape[0] + 15) // 16, (shape[1] + 31) // 32)
            found[name] = TensorInfo("F8_E4M3", shape, "model.safetensors", 0, 0)
            found[f"{name}_scale_inv"] = TensorInfo("F32", tiles, "model.safetensors", 0, 0)
    return found


@pytest.mark.parametrize(
    ("skipping", "stays"),
    [
        ({}, ()),
        ({"modules_to_not_convert": None}, ()),
        ({"modules_to_not_convert": ["lm_head", "model.layers.1.mlp"]}, ("layers.1.mlp",)),
        ({"ignored_layers": ["q_a_proj"]}, ("q_a_proj",)),
        ({"ignored_layers": ["a_proj", "model.layers.1.mlp.ga"]}, ()),
    ],
)
def test_a_config_tells_what_the_headers_do(
    small: Callable[[str], Any], skipping: dict[str, Any], stays: tuple[str, ...]
) -> None:
    config = small("deepseek-v3").to_dict() | {"dtype": "bfloat16"}
    architecture = read_architecture(config)
    block = BLOCK | {"weight_block_size": [16, 32]} | skipping
    told = block_fp8(block, inventory_from_config(config, architecture), architecture)
    assert told is not None
    headers = inventory_from_headers(tensors_of_files(config, IN_16_BITS + stays), architecture)
    assert set(told.tensors) == set(headers.tensors)
    assert len(told.tensors) == len(headers.tensors)


@pytest.mark.parametrize(
    "change",
    [
        {"weight_block_size": None},
        {"weight_block_size": [128]},
        {"weight_block_size": [128, 0]},
        {"weight_block_size": [128, True]},
        {"weight_block_size": 128},
        {"quant_method": "fbgemm_fp8"},
        {"fmt": "e5m2"},
        {"activation_scheme": "static"},
        {"modules_to_not_convert": ["re:.*gate"]},
        {"modules_to_not_convert": "lm_head"},
        {"ignored_layers": [7]},
    ],
)
def test_all_else_is_refused_without_files(
    tmp_path: Path, small: Callable[[str], Any], change: dict[str, Any]
) -> None:
    config = small("deepseek-v3").to_dict() | {"quantization_config": BLOCK | change}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="weight files are missing"):
        open_model(str(tmp_path))


def test_mixers_that_files_name_otherwise_are_refused(small: Callable[[str], Any]) -> None:
    config = small("qwen3-next").to_dict()
    architecture = read_architecture(config)
    inventory = inventory_from_config(config, architecture)
    assert block_fp8(BLOCK, inventory, architecture) is None


def test_deepseek_v3_is_planned_from_its_config(
    known_models: dict[str, Any], tmp_path: Path
) -> None:
    """By rank: the heads' and the vocabulary's eighth, the latents and the router whole."""
    config = known_models["DeepSeek-V3"]["config"] | {"quantization_config": BLOCK}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = open_model(str(tmp_path))
    assert model.quantized == "fp8"
    names = {tensor.name for tensor in model.inventory.tensors}
    assert {name for name in names if name.endswith("_inv")} == {
        f"{t.name}_scale_inv" for t in model.inventory.tensors if t.dtype == "F8_E4M3"
    }
    place = named_place("h200", "vllm", Degrees(8))
    (found,) = serving_of(model, (), place, Load(8192)).builds
    assert found.deployment is not None
    assert round(found.deployment.weights / 2**30, 1) == 79.3
    stored = {t.dtype: 0 for t in model.inventory.tensors}
    for tensor in model.inventory.tensors:
        stored[tensor.dtype] += prod(tensor.shape)
    published = known_models["DeepSeek-V3"]["parameters"]
    assert stored["F8_E4M3"] + stored["BF16"] == published
