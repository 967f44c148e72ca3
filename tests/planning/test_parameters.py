"""Tensors from a config alone, against published counts and the models that transformers builds."""

from math import prod
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from quantkit.planning.config import read_architecture
from quantkit.planning.parameters import inventory_from_config, parameter_count


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
