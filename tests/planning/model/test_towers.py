"""Vision towers and projectors from a config, against the models that transformers builds."""

from math import prod
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import InputError
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.headers import inventory_from_headers
from quantkit.planning.model.inventory import Inventory
from quantkit.planning.model.parameters import inventory_from_config

VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 60,
    "patch_size": 14,
}
SIGLIP = {**VISION, "model_type": "siglip_vision_model", "vision_use_head": False}
CLIP = {**VISION, "model_type": "clip_vision_model"}
PIXTRAL = {**VISION, "model_type": "pixtral"}
TEXT = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
}
WHOLE: dict[str, dict[str, Any]] = {
    "gemma3": {"vision_config": SIGLIP, "text_config": {**TEXT, "model_type": "gemma3_text"}},
    "gemma3-head": {
        "model_type": "gemma3",
        "vision_config": {**SIGLIP, "vision_use_head": True},
        "text_config": {**TEXT, "model_type": "gemma3_text"},
    },
    "llava": {"vision_config": CLIP, "text_config": {**TEXT, "model_type": "llama"}},
    "llava-features": {
        "model_type": "llava",
        "vision_config": CLIP,
        "text_config": {**TEXT, "model_type": "llama"},
        "vision_feature_layer": [-1, -2],
        "multimodal_projector_bias": False,
    },
    "mistral3": {
        "vision_config": PIXTRAL,
        "text_config": {**TEXT, "model_type": "mistral"},
        "spatial_merge_size": 3,
    },
    "paligemma": {
        "vision_config": {**SIGLIP, "projection_dim": 64},
        "text_config": {**TEXT, "model_type": "gemma"},
        "projection_dim": 64,
    },
}


def towers_of(inventory: Inventory) -> int:
    return sum(prod(t.shape) for t in inventory.tensors if t.part == "tower")


@pytest.mark.parametrize("name", WHOLE)
def test_as_many_elements_as_transformers_has(name: str) -> None:
    values = {key: value for key, value in WHOLE[name].items() if key != "model_type"}
    whole = CONFIG_MAPPING[WHOLE[name].get("model_type", name)](**values)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(whole)
    beside = {
        key: tensor
        for key, tensor in model.state_dict().items()
        if "vision_tower" in key or "projector" in key
    }
    config = whole.to_dict()
    architecture = read_architecture(config)
    inventory = inventory_from_config(config, architecture)
    assert towers_of(inventory) == sum(tensor.numel() for tensor in beside.values())
    assert inventory.uncounted == ()
    stored = {
        key: TensorInfo("BF16", tuple(tensor.shape), "model.safetensors", 0, 0)
        for key, tensor in beside.items()
    }
    assert towers_of(inventory_from_headers(stored, architecture)) == towers_of(inventory)


def test_gemma_3_27b_has_the_parameters_that_are_published(known_models: dict[str, Any]) -> None:
    config = known_models["Gemma-3-27B"]["config"]
    inventory = inventory_from_config(config, read_architecture(config))
    assert towers_of(inventory) == 27_432_406_640 - 27_009_346_304


@pytest.mark.parametrize(
    ("changes", "uncounted"),
    [
        ({"vision_config": {"model_type": "gemma3n_vision"}}, ("vision_config",)),
        ({"model_type": "gemma3n", "audio_config": {}}, ("vision_config", "audio_config")),
        ({"audio_config": {"hidden_size": 8}}, ("audio_config",)),
        ({"vision_config": None}, ()),
    ],
)
def test_what_a_config_does_not_tell_is_named(
    changes: dict[str, Any], uncounted: tuple[str, ...]
) -> None:
    config = {"model_type": "gemma3", **WHOLE["gemma3"], "tie_word_embeddings": True} | changes
    inventory = inventory_from_config(config, read_architecture(config))
    assert inventory.uncounted == uncounted
    assert (towers_of(inventory) > 0) == ("audio_config" in config and len(uncounted) == 1)


@pytest.mark.parametrize("name", ["siglip_vision_model", "clip_vision_model", "pixtral"])
def test_what_a_file_leaves_out_is_as_in_the_class(name: str) -> None:
    full = CONFIG_MAPPING[name]().to_dict()
    config = {"model_type": "llava", "text_config": {**TEXT, "model_type": "llama"}}
    architecture = read_architecture(config)
    inventories = [
        inventory_from_config(config | {"vision_config": vision}, architecture)
        for vision in ({"model_type": name}, full)
    ]
    assert towers_of(inventories[0]) == towers_of(inventories[1]) > 10**7


@pytest.mark.parametrize("name", ["hidden_size", "patch_size", "num_hidden_layers"])
def test_a_tower_with_a_size_that_is_none_is_refused(name: str) -> None:
    config = {"model_type": "gemma3", **WHOLE["gemma3"], "vision_config": {**SIGLIP, name: "2"}}
    with pytest.raises(InputError, match=f"{name} is '2', in vision_config"):
        inventory_from_config(config, read_architecture(config))
