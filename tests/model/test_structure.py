"""The structure that tracing finds, for every family without a word about it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from quantkit.model.skeleton import build_skeleton, read_config
from quantkit.model.structure import BlockStructure, ScalePair, _groups, trace_structure
from tests.conftest import SHAPE

QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
LLAMA_LIKE = [QKV, ("self_attn.o_proj",), ("mlp.gate_proj", "mlp.up_proj"), ("mlp.down_proj",)]
GPT2 = [("attn.c_attn",), ("attn.c_proj",), ("mlp.c_fc",), ("mlp.c_proj",)]


@pytest.fixture
def kind(tiny_checkpoint: Callable[..., Path], family: str) -> BlockStructure:
    structure = trace_structure(build_skeleton(read_config(tiny_checkpoint(family))))
    assert structure.blocks == (0, 0)
    return structure.of(0)


def test_groups_are_the_linears_that_read_one_tensor(kind: BlockStructure, family: str) -> None:
    assert [g.names for g in kind.groups] == (GPT2 if family == "gpt2" else LLAMA_LIKE)
    assert kind.idle == ()


def test_only_keys_and_values_mix_tokens(kind: BlockStructure) -> None:
    assert [g.mixes_tokens for g in kind.groups] == [True, False, False, False]


def test_pairs_are_those_that_can_be_folded_exactly(kind: BlockStructure, family: str) -> None:
    found = {p.consumers[0].rsplit(".", 1)[-1]: (p.producer, p.kind) for p in kind.pairs}
    if family == "gpt2":  # gelu is not homogeneous, and c_attn holds q and k beside v
        assert found == {"c_attn": ("ln_1", "norm"), "c_fc": ("ln_2", "norm")}
        return
    norm = "norm_offset" if family == "gemma3" else "norm"
    assert found["q_proj"] == ("input_layernorm", norm)
    assert found["gate_proj"][1] == norm
    assert found["o_proj"] == ("self_attn.v_proj", "linear")
    assert found["down_proj"] == ("mlp.up_proj", "linear")


def test_grouped_queries_share_the_rows_of_a_value_head() -> None:
    pair = ScalePair("v", "linear", ("o",), repeat=2, run=2)
    rows = torch.tensor([1.0, 2.0, 3.0, 4.0])
    columns = pair.columns(rows)
    assert columns.tolist() == [1, 2, 1, 2, 3, 4, 3, 4]
    assert pair.rows(columns).tolist() == rows.tolist()


def test_blocks_of_another_shape_are_another_kind(tiny_checkpoint: Callable[..., Path]) -> None:
    skeleton = build_skeleton(read_config(tiny_checkpoint("llama", num_hidden_layers=3)))
    skeleton.blocks[1].get_submodule("mlp.up_proj").bias = torch.nn.Parameter(
        torch.empty(256, device="meta")
    )
    structure = trace_structure(skeleton)
    assert structure.blocks == (0, 1, 0)


def test_a_linear_that_is_called_twice_stands_where_its_last_input_comes() -> None:
    x, y, z = (torch.zeros(1) for _ in range(3))
    calls = [("router", x), ("q", y), ("k", y), ("router", z), ("o", x)]
    found = {names: len(read) for names, read in _groups(calls)}
    assert found == {("q", "k"): 1, ("router",): 2, ("o",): 1}
    assert list(found) == [("q", "k"), ("router",), ("o",)]


def test_a_shared_expert_as_wide_as_there_are_experts_is_no_router(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    """As Qwen3-Next's, which has 512 of both."""
    folder = tiny_checkpoint("shared_expert", num_experts=32, shared_expert_intermediate_size=32)
    kind = trace_structure(build_skeleton(read_config(folder))).of(0)
    assert kind.routers == ("mlp.shared_expert_gate",)
    shared = ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
    assert shared in [group.names for group in kind.groups]


def test_a_router_is_found_beside_experts_that_lie_in_the_block_itself() -> None:
    """Of two linears with an output for each expert one weighs them, as in Gemma 4."""
    config = transformers.Gemma4TextConfig(
        **SHAPE,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=64,
        top_k_experts=2,
        moe_intermediate_size=32,
    )
    kind = trace_structure(build_skeleton(config)).of(0)
    assert kind.routers == ("router.proj",)
    assert QKV in [group.names for group in kind.groups]


def test_every_linear_of_a_router_of_several_is_found() -> None:
    config = transformers.ZayaConfig(
        **SHAPE,
        num_experts=4,
        moe_intermediate_size=64,
        router_hidden_size=16,
    )
    mlp = [f"mlp.gate.router_mlp.{name}" for name in ("fc1", "fc2", "out_proj")]
    for kind in trace_structure(build_skeleton(config)).kinds:
        assert kind.routers == ("mlp.gate.down_proj", *mlp)


def test_tokens_that_a_router_sorts_are_its_own_doing() -> None:
    sizes = {k: v for k, v in SHAPE.items() if k not in ("num_attention_heads", "head_dim")}
    config = transformers.JetMoeConfig(**sizes, num_local_experts=4, kv_channels=32)
    kind = trace_structure(build_skeleton(config)).of(0)
    assert kind.routers == ("self_attention.experts.router.layer", "mlp.router.layer")
