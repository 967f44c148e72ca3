"""Tensors by their names: those that transformers gives to small models of every family."""

from collections import Counter
from math import prod
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from quantkit.checkpoint.stored import TensorInfo
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.headers import inventory_from_headers
from quantkit.planning.model.inventory import Inventory
from quantkit.planning.model.parallel import kinds_of
from quantkit.planning.model.parameters import inventory_from_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
}


def headers(**shapes: tuple[str, tuple[int, ...]]) -> dict[str, TensorInfo]:
    return {name: TensorInfo(*stored, "model.safetensors", 0, 0) for name, stored in shapes.items()}


def elements(inventory: Inventory) -> Counter[tuple[str, str]]:
    """By part and split; fused q, k, v cannot be told apart, nor stacked experts split."""
    found: Counter[tuple[str, str]] = Counter()
    for tensor in inventory.tensors:
        split = "rows" if tensor.split == "kv_rows" else tensor.split
        found[tensor.part, "" if tensor.part == "experts" else split] += prod(tensor.shape)
    return found


def test_what_files_hold_is_what_configs_tell(small_config: Any) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(small_config)
    twice = set(model._tied_weights_keys or ()) if small_config.tie_word_embeddings else set()
    stored = {
        name: TensorInfo("F32", tuple(tensor.shape), "model.safetensors", 0, 0)
        for name, tensor in model.state_dict().items()
        if name not in twice
    }
    config = small_config.to_dict()
    architecture = read_architecture(config)
    found = inventory_from_headers(stored, architecture)
    assert elements(found) == elements(inventory_from_config(config, architecture))


@pytest.mark.parametrize(
    "router", ["mlp.router.gate", "mlp.gate.wg", "mlp.gate.down_proj", "router.proj"]
)
def test_no_linear_of_a_router_would_be_quantized(router: str) -> None:
    """AFMoE's, Hunyuan's, ZAYA's and Gemma 4's."""
    stored = headers(**{f"model.layers.1.{router}.weight": ("BF16", (64, 64))})
    (tensor,) = inventory_from_headers(stored, read_architecture(LLAMA)).tensors
    assert (tensor.part, tensor.linear) == ("router", None)


def test_linears_name_those_they_are_fused_with() -> None:
    block = "model.layers.1."
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj")
    stored = headers(**{f"{block}{name}.weight": ("BF16", (64, 64)) for name in names})
    tensors = inventory_from_headers(stored, read_architecture(LLAMA)).tensors
    assert [tensor.linear for tensor in tensors] == [block + name for name in names]
    assert {tensor.fused for tensor in tensors[:3]} == {tuple(block + name for name in names[:3])}
    assert tensors[3].fused == ()  # no gate beside it


@pytest.mark.parametrize(
    ("name", "shape", "role"),
    [
        ("language_model.lm_head", (128, 64), ("head", "vocabulary", True)),
        ("output", (128, 64), ("head", "vocabulary", True)),
        ("transformer.blocks.0.norm_attn_norm.attn.Wqkv", (96, 64), ("attention", "rows", True)),
        ("transformer.blocks.0.norm_attn_norm.norm_1", (64,), ("norm", "replicated", False)),
        ("transformer.blocks.0.ffn.experts.mlp.w1", (384, 64), ("experts", "experts", True)),
        ("model.layers.0.attention.wo", (64, 64), ("attention", "columns", True)),
        ("model.layers.0.attention.wqkv", (96, 64), ("attention", "rows", True)),
        ("model.layers.0.laurel.linear_left", (6, 64), ("mlp", "rows", True)),
        ("model.layers.0.laurel.linear_right", (64, 6), ("mlp", "columns", True)),
        ("model.layers.0.laurel.post_laurel_norm", (64,), ("norm", "replicated", False)),
        ("model.layers.0.shared_mlp.input_linear", (96, 64), ("mlp", "rows", True)),
        ("model.layers.0.shared_mlp.output_linear", (64, 48), ("mlp", "columns", True)),
        (
            "model.layers.0.block_sparse_moe.input_linear",
            (4, 96, 64),
            ("experts", "experts", False),
        ),
        ("model.layers.0.self_attn.q_norm", (16,), ("norm", "replicated", False)),
        ("model.layers.0.input_layernorm", (64,), ("norm", "replicated", False)),
    ],
)
def test_names_of_less_common_families(
    name: str, shape: tuple[int, ...], role: tuple[str, str, bool]
) -> None:
    stored = headers(**{f"{name}.weight": ("BF16", shape)})
    (tensor,) = inventory_from_headers(stored, read_architecture(LLAMA)).tensors
    assert (tensor.part, tensor.split, tensor.linear is not None) == role


def test_blocks_beyond_those_of_the_config_are_kept_apart() -> None:
    names = (
        "model.layers.2.mlp.up_proj",
        "mtp.layers.0.mlp.up_proj",
        "mtp.fc",
        "model.mtp_layers.0.w",
    )
    stored = headers(**{f"{name}.weight": ("BF16", (96, 64)) for name in names})
    architecture = read_architecture(LLAMA)
    inventory = inventory_from_headers(stored, architecture)
    assert {(t.part, t.layer) for t in inventory.tensors} == {("other", 2)}
    assert kinds_of(inventory, architecture) == ()


def test_what_is_quantized_already_is_no_linear_and_is_split_like_one() -> None:
    linear = "model.layers.0.mlp.down_proj"
    stored = headers(
        **{
            f"{linear}.qweight": ("I32", (12, 64)),
            f"{linear}.g_idx": ("I32", (96,)),
            f"{linear}.bias": ("F16", (64,)),
            "model.layers.0.mlp.up_proj.g_idx": ("I32", (64,)),
            "model.layers.0.mlp.up_proj.weight_shape": ("I64", (2,)),
            "model.layers.0.self_attn.q_proj.weight": ("F8_E4M3", (64, 64)),
        }
    )
    tensors = inventory_from_headers(stored, read_architecture(LLAMA)).tensors
    assert {tensor.linear for tensor in tensors} == {None}
    splits = ["columns", "columns", "replicated", "replicated", "replicated", "rows"]
    assert [tensor.split for tensor in tensors] == splits


def test_towers_of_other_senses_are_held_whole() -> None:
    names = ("vision_tower.layers.0.mlp.fc1", "model.embed_vision.embedding_projection")
    stored = headers(**{f"{name}.weight": ("BF16", (64, 64)) for name in names})
    for tensor in inventory_from_headers(stored, read_architecture(LLAMA)).tensors:
        assert (tensor.part, tensor.split, tensor.linear) == ("tower", "replicated", None)
