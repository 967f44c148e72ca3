"""Ranks' shares: they sum to the whole, but for what is copied."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import InputError
from quantkit.core.serving import Degrees
from quantkit.planning.model.headers import inventory_from_headers
from quantkit.planning.model.inventory import Inventory
from quantkit.planning.model.parallel import stages_of
from quantkit.planning.model.weights import (
    PlannedModel,
    planned_model,
    recipe_build,
    stored_build,
    weigh,
)
from quantkit.recipes.loader import build_recipe

Planned = Callable[..., PlannedModel]


@given(st.integers(1, 100), st.integers(1, 16))
def test_stages_cover_every_block_once_and_differ_by_one(depth: int, pipeline: int) -> None:
    if pipeline > depth:
        with pytest.raises(InputError):
            stages_of(depth, pipeline)
        return
    stages = stages_of(depth, pipeline)
    blocks = [block for stage in stages for block in range(stage.first, stage.end)]
    assert blocks == list(range(depth))
    sizes = [stage.end - stage.first for stage in stages]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)  # the last has the head


@pytest.mark.parametrize("name", ["Llama-3-8B", "Qwen3-30B-A3B", "DeepSeek-V2", "Gemma-2-9B"])
@pytest.mark.parametrize("tensor", [2, 4])
def test_ranks_hold_their_part_and_a_copy_of_the_rest(
    planned: Planned, name: str, tensor: int
) -> None:
    model = planned(name)
    build = stored_build(model)
    whole = weigh(model, build)
    copied = sum(
        2 * kind.count * _size(kind.tensor.shape)
        for kind in model.kinds
        if kind.tensor.split == "replicated"
    )
    rank = weigh(model, build, Degrees(tensor))
    buffers = 2 * sum(t.shape[0] for t in model.inventory.tensors if t.buffer)  # in fp32
    assert sum(rank.values()) == (sum(whole.values()) + (tensor - 1) * (copied + buffers)) // tensor


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for dim in shape:
        size *= dim
    return size


def test_a_rank_of_70b_in_4_bits(planned: Planned) -> None:
    """Half of all but the norms; `weight_shape`, 16 bytes a linear, is whole on both ranks."""
    model = planned("Llama-3-70B")
    build = recipe_build(model, build_recipe("gptq-compressed", group_size=128))
    rank = sum(weigh(model, build, Degrees(2), padded=True).values())
    assert rank - 8 * 560 == 19_751_522_688


def test_kv_heads_are_copied_where_there_are_fewer_than_ranks(planned: Planned) -> None:
    model = planned("Qwen2.5-7B")  # 4 KV heads of 128, with biases
    build = stored_build(model)
    four, eight = (weigh(model, build, Degrees(t))["attention"] for t in (4, 8))
    block = (3584 * 128 + 128) * 2  # k and v of one head
    queries_and_output = 4 * (4 * 3584 * 896 + 4 * 896) // 8
    assert four - eight < 28 * queries_and_output
    assert eight > 28 * 2 * block


def test_experts_go_whole_to_ranks(planned: Planned) -> None:
    model = planned("Qwen3-30B-A3B")
    build = stored_build(model)
    whole = weigh(model, build)
    spread = weigh(model, build, Degrees(1, 1, 8))
    assert spread["experts"] == whole["experts"] // 8
    assert {**spread, "experts": 0} == {**whole, "experts": 0}
    assert weigh(model, build, Degrees(8, 1, 8))["experts"] == spread["experts"]


def test_stacked_experts_go_whole_to_ranks(planned: Planned) -> None:
    """gpt-oss: 32 experts of a layer are one tensor of codes and one of scales."""
    whole = planned("gpt-oss-20b")
    shapes = {"gate_up_proj": (32, 5760, 90), "down_proj": (32, 2880, 90)}
    stored = {}
    for layer in range(24):
        for name, (experts, rows, blocks) in shapes.items():
            module = f"model.layers.{layer}.mlp.experts.{name}"
            for suffix, shape in (
                ("_blocks", (experts, rows, blocks, 16)),
                ("_scales", (experts, rows, blocks)),
            ):
                stored[module + suffix] = TensorInfo("U8", shape, "model.safetensors", 0, 0)
    inventory = inventory_from_headers(stored, whole.architecture)
    model = planned_model("gpt-oss", inventory, whole.architecture, "mxfp4")
    size = 24 * 32 * 90 * 17 * (5760 + 2880)
    build = stored_build(model)
    assert weigh(model, build) == {"experts": size}
    for expert, held in ((2, 16), (5, 7), (8, 4), (32, 1)):
        for tensor in (1, 8):
            assert weigh(model, build, Degrees(tensor, 1, expert))["experts"] == size * held // 32


def test_a_tied_head_in_the_files_is_loaded_once(planned: Planned) -> None:
    model = planned("SmolLM2-135M")
    table = next(t for t in model.inventory.tensors if t.part == "embedding")
    head = table._replace(name="lm_head.weight", part="head", linear="lm_head")
    both = Inventory((*model.inventory.tensors, head), "safetensors headers")
    again = planned_model("with a head", both, model.architecture)
    assert weigh(again, stored_build(again)) == weigh(model, stored_build(model))


def test_stages_hold_their_blocks_and_both_ends_a_tied_embedding(planned: Planned) -> None:
    model = planned("SmolLM2-135M")
    build = stored_build(model)
    first, last = (weigh(model, build, stage=s) for s in stages_of(30, 2))
    whole = weigh(model, build)
    assert first["embedding"] == last["embedding"] == whole["embedding"]
    assert first["mlp"] + last["mlp"] == whole["mlp"]
    assert first["norm"] + last["norm"] == whole["norm"]


def test_a_vocabulary_is_padded_to_64_rows_before_it_is_dealt(planned: Planned) -> None:
    model = planned("Llama-3-8B", vocab_size=128_001)
    build = stored_build(model)
    padded = weigh(model, build, Degrees(2), padded=True)["head"]
    assert padded == 128_064 // 2 * 4096 * 2
    assert weigh(model, build)["head"] == 128_001 * 4096 * 2
