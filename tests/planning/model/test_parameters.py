"""Tensors from a config alone, against published counts and the models that transformers builds."""

from math import ceil, prod
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.parameters import inventory_from_config, parameter_count


def test_published_counts(known_model: dict[str, Any]) -> None:
    config = known_model["config"]
    inventory = inventory_from_config(config, read_architecture(config))
    assert parameter_count(inventory) == known_model["parameters"]
    assert len({tensor.name for tensor in inventory.tensors}) == len(inventory.tensors)


def test_the_models_that_transformers_builds(small_config: Any) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(small_config)
    config = small_config.to_dict()
    architecture = read_architecture(config)
    inventory = inventory_from_config(config, architecture)
    assert parameter_count(inventory) == sum(p.numel() for p in model.parameters())
    for index, block in enumerate(_blocks(model, len(architecture.layers))):
        planned = sum(prod(t.shape) for t in inventory.tensors if t.layer == index and not t.buffer)
        assert planned == sum(p.numel() for p in block.parameters()), f"block {index}"
    saved = {name for name, _ in model.named_buffers()} & set(model.state_dict())
    held = sum(model.get_buffer(name).numel() for name in saved if "bias" in name)
    assert sum(prod(t.shape) for t in inventory.tensors if t.buffer) == held


def _blocks(model: torch.nn.Module, depth: int) -> torch.nn.ModuleList:
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return next(found for found in lists if len(found) == depth)


def test_linears_that_engines_fuse_name_each_other(known_models: dict[str, Any]) -> None:
    config = known_models["Llama-3-8B"]["config"]
    inventory = inventory_from_config(config, read_architecture(config))
    linears = {tensor.linear: tensor for tensor in inventory.tensors if tensor.linear}
    block = "model.layers.31."
    query = linears[f"{block}self_attn.q_proj"]
    assert query.fused == tuple(f"{block}self_attn.{n}_proj" for n in "qkv")
    assert (query.split, linears[query.fused[1]].split) == ("rows", "kv_rows")
    assert linears[f"{block}mlp.gate_proj"].fused == linears[f"{block}mlp.up_proj"].fused
    assert linears[f"{block}mlp.down_proj"].split == "columns"
    assert not linears[f"{block}mlp.down_proj"].fused
    for tensor in linears.values():
        assert all(tensor.fused == linears[name].fused for name in tensor.fused)


def test_latents_are_copied_to_every_rank_and_heads_are_split(
    known_models: dict[str, Any],
) -> None:
    config = known_models["DeepSeek-V3"]["config"]
    inventory = inventory_from_config(config, read_architecture(config))
    splits = {t.linear.rpartition(".")[2]: t.split for t in inventory.tensors if t.linear}
    assert splits["q_a_proj"] == splits["kv_a_proj_with_mqa"] == "replicated"
    assert splits["q_b_proj"] == splits["kv_b_proj"] == "rows"
    experts = [t for t in inventory.tensors if t.part == "experts"]
    assert len(experts) == 58 * 256 * 3
    corrections = [t for t in inventory.tensors if t.buffer]
    assert {t.dtype for t in corrections} == {"F32"}
    assert sum(prod(t.shape) for t in corrections) == 58 * 256


@pytest.mark.parametrize(
    ("name", "published"), [("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744)]
)
def test_published_bytes_of_experts_in_mxfp4(
    name: str, published: int, known_models: dict[str, Any]
) -> None:
    config = known_models[name]["config"]
    total = 0
    for tensor in inventory_from_config(config, read_architecture(config)).tensors:
        size = prod(tensor.shape)
        packed = tensor.part == "experts" and tensor.linear  # 4 bits, and a byte for each 32
        total += size // 2 + size // 32 if packed else 2 * size
    assert total == published


def test_published_bytes_of_deepseek_v3_in_fp8(known_models: dict[str, Any]) -> None:
    """The files have one layer more, which predicts a second token, in a frame of its own."""
    config = known_models["DeepSeek-V3"]["config"] | {"num_hidden_layers": 62}
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    total = 2 * (2 * hidden * hidden + 3 * hidden + 2 * vocabulary * hidden)
    count = 6
    for tensor in inventory_from_config(config, read_architecture(config)).tensors:
        size, count = prod(tensor.shape), count + 1
        if tensor.linear and tensor.layer is not None:  # a scale for each block of 128 x 128
            blocks = [ceil(width / 128) for width in tensor.shape]
            total, count = total + size + 4 * prod(blocks), count + 1
        else:
            total += (4 if tensor.buffer else 2) * size
    assert (total, count) == (688_574_839_360, 91_991)
