"""Architectures from configs: layer kinds, what is refused, and what no config may do."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.core.errors import InputError, QuantkitError, RefusedError
from quantkit.planning.model.architecture import Attention, Experts, FeedForward, LatentAttention
from quantkit.planning.model.config import read_architecture, read_as_llama, unread_fields
from quantkit.planning.model.parameters import inventory_from_config, parameter_count

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
FULL, SLIDING = "full_attention", "sliding_attention"


def windows(**changes: Any) -> list[int | None]:
    layers = read_architecture(LLAMA | changes).layers
    return [layer.mixer.window for layer in layers if isinstance(layer.mixer, Attention)]


def test_an_unknown_family_is_read_as_a_llama_where_asked_alone() -> None:
    unknown = LLAMA | {"model_type": "new"}
    assert read_as_llama(unknown).layers == read_architecture(LLAMA).layers
    with pytest.raises(RefusedError, match="plan does not know model_type 'new'"):
        read_architecture(unknown)
    with pytest.raises(RefusedError, match="it has no hidden_size, num_hidden_layers"):
        read_as_llama({"model_type": "new", "num_heads": 8})


def test_fields_that_may_tell_of_tensors_are_named() -> None:
    quiet = {"pad_token_id": 3, "rope_scaling": {"factor": 8}, "rms_norm_eps": 1e-5, "lora": None}
    assert unread_fields(LLAMA | quiet | {"mlp_bias": True, "extra_norm": False}) == ()
    assert unread_fields(LLAMA | {"num_memory_tokens_layers": 4}) == ("num_memory_tokens_layers",)
    opt = {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "ffn_dim": 96}
    opt |= {"num_attention_heads": 4, "vocab_size": 128}
    assert unread_fields(opt | {"word_embed_proj_dim": 64}) == ()
    assert unread_fields(opt | {"word_embed_proj_dim": 32}) == ("word_embed_proj_dim",)


def test_an_empty_list_of_rotary_layers_is_none() -> None:
    llama4 = {"model_type": "llama4_text", "num_local_experts": 4, "num_experts_per_tok": 1}
    assert windows(**llama4, no_rope_layers=[]) == windows(**llama4)


def test_layer_types_come_first() -> None:
    listed = [SLIDING, FULL] * 3
    changes = {"layer_types": listed, "sliding_window_pattern": 6, "sliding_window": 32}
    assert windows(**changes) == [32, None] * 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sliding_window": 32}, [32] * 6),
        ({"sliding_window": 32, "use_sliding_window": False}, [None] * 6),
        ({"sliding_window": 32, "sliding_window_pattern": 3}, [32, 32, None] * 2),
        ({"model_type": "gemma2", "sliding_window": 32}, [32, None] * 3),
        ({"model_type": "gemma3_text"}, [4096] * 5 + [None]),
        ({"model_type": "qwen2", "sliding_window": 32}, [None] * 6),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 32,
                "use_sliding_window": True,
                "max_window_layers": 4,
            },
            [None] * 4 + [32] * 2,
        ),
        (
            {"model_type": "llama4_text", "attention_chunk_size": 16, "num_local_experts": 2},
            [16, 16, 16, None, 16, 16],
        ),
        (
            {
                "model_type": "llama4_text",
                "attention_chunk_size": 16,
                "num_local_experts": 2,
                "no_rope_layers": [0, 1, 1, 0, 1, 1],
            },
            [None, 16, 16, None, 16, 16],
        ),
    ],
)
def test_windows(changes: dict[str, Any], expected: list[int | None]) -> None:
    assert windows(**changes) == expected


def test_dense_and_sparse_layers() -> None:
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

    def sparse(**changes: Any) -> list[bool]:
        layers = read_architecture(LLAMA | experts | changes).layers
        return [isinstance(layer.feed_forward, Experts) for layer in layers]

    assert sparse() == [True] * 6
    assert sparse(first_k_dense_replace=2) == [False] * 2 + [True] * 4
    assert sparse(decoder_sparse_step=2) == [False, True] * 3
    assert (
        sparse(decoder_sparse_step=2, mlp_only_layers=[1, 5]) == [False] * 3 + [True] + [False] * 2
    )
    assert sparse(expert_layer_period=3, expert_layer_offset=1) == [False, True, False] * 2
    assert sparse(mlp_layer_types=["dense"] + ["sparse"] * 5) == [False] + [True] * 5
    assert sparse(num_experts=0) == [False] * 6


def test_latent_attention_is_told_by_its_rank() -> None:
    latent = {
        "kv_lora_rank": 32,
        "q_lora_rank": None,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    }
    mixer = read_as_llama(LLAMA | {"model_type": "new"} | latent).layers[0].mixer
    assert mixer == LatentAttention(4, None, 32, 8, 16, 16)


def test_the_text_part_of_a_multimodal_model() -> None:
    text = {"model_type": "gemma3_text", "num_hidden_layers": 6, "hidden_size": 64, "head_dim": 24}
    config = {"model_type": "gemma3", "text_config": text, "torch_dtype": "bfloat16"}
    found = read_architecture(config)
    assert (found.model_type, found.hidden, found.dtype) == ("gemma3_text", 64, "BF16")
    assert (found.vocabulary, found.tied) == (262_208, True)
    assert not read_architecture(config | {"tie_word_embeddings": False}).tied
    unnamed = {key: value for key, value in text.items() if key != "model_type"}
    assert read_architecture(config | {"text_config": unnamed}).layers == found.layers


def test_a_width_for_each_layer() -> None:
    widths = [8, 16, 24, 32, 40, 48]
    changes = {"model_type": "gemma3n_text", "intermediate_size": widths, "num_kv_shared_layers": 2}
    layers = read_architecture(LLAMA | changes).layers
    assert [layer.feed_forward for layer in layers] == [FeedForward(width) for width in widths]
    shared = [m.mixer.shares_cache for m in layers if isinstance(m.mixer, Attention)]
    assert shared == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 64.0}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": -64}, "hidden_size"),
        ({"hidden_size": 1 << 80}, "hidden_size"),
        ({"hidden_size": 66}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"layer_types": [FULL]}, "layer_types"),
        ({"layer_types": "full"}, "layer_types"),
        ({"layer_types": [[FULL]] * 6}, "layer_types"),
        ({"layer_types": [SLIDING] * 6}, "sliding_window"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"torch_dtype": "int3"}, "dtype"),
        ({"torch_dtype": ["float16"]}, "dtype"),
        ({"model_type": None}, "model_type"),
        ({"model_type": 7}, "model_type"),
        ({"intermediate_size": [1, 2]}, "intermediate_size"),
        ({"intermediate_size": [0] * 6}, "intermediate_size"),
        ({"num_experts": 8}, "num_experts_per_tok"),
        ({"num_experts": 1 << 30, "num_experts_per_tok": 1}, "experts"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "moe_layers": "all"}, "moe_layers"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 1 << 40}, "num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "moe_layers": [0] * 999}, "moe_layers"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [0] * 999}, "mlp_only"),
        ({"model_type": "llama\nTotal: 0"}, "model_type"),
        ({"model_type": "a" * 61}, "model_type"),
        ({"model_type": ""}, "model_type"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        read_architecture(LLAMA | changes)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"model_type": "new", "d_model": 512, "num_heads": 8}, "does not know model_type 'new'"),
        (LLAMA | {"model_type": "bert"}, "bert' is an encoder"),
        (LLAMA | {"model_type": "t5"}, "t5' is an encoder-decoder"),
        (LLAMA | {"model_type": "new", "is_encoder_decoder": True}, "an encoder-decoder"),
        ({"model_type": "x" * 60}, "does not know model_type 'xxx"),
        (LLAMA | {"layer_types": ["retention"] * 6}, "retention"),
        (LLAMA | {"layer_types": ["linear_attention"] * 6}, "linear_attention"),
    ],
)
def test_what_is_not_known_is_refused(config: dict[str, Any], named: str) -> None:
    with pytest.raises(RefusedError, match=named) as refusal:
        read_architecture(config)
    assert len(str(refusal.value)) < 1000


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=6,
)


FIELDS = (
    *LLAMA,
    *("layer_types", "head_dim", "text_config", "num_experts", "dtype", "sliding_window"),
    *("kv_lora_rank", "sliding_window_pattern", "tie_word_embeddings", "attention_bias"),
)


@given(field=st.sampled_from(FIELDS), value=VALUES)
def test_no_value_breaks_the_reader(field: str, value: Any) -> None:
    config = LLAMA | {field: value}
    try:
        inventory = inventory_from_config(config, read_architecture(config))
    except QuantkitError:
        return
    assert parameter_count(inventory) > 0


def test_long_lists_are_read_once() -> None:
    """4,096 layers that name each other took 4,096 readings of 4,096 entries."""

    def seconds(depth: int) -> float:
        config = LLAMA | {"num_hidden_layers": depth, "num_experts": 8, "num_experts_per_tok": 2}
        begin = time.process_time()
        for name in ("moe_layers", "mlp_only_layers"):
            layers = read_architecture(config | {name: list(range(1, depth))}).layers
            sparse = [isinstance(layer.feed_forward, Experts) for layer in layers]
            assert sum(sparse) == (depth - 1 if name == "moe_layers" else 1)
        return time.process_time() - begin

    few, many = (min(seconds(depth) for _ in range(3)) for depth in (512, 4096))
    assert many < 24 * few  # 8 times as much if each is read once, 64 times if not
