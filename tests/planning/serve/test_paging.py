"""Blocks by vLLM's rules: worked examples, and what vLLM's logs reported for real cards."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.planning.model.config import read_architecture
from quantkit.planning.serve.paging import (
    Group,
    PagedCache,
    blocks_per_sequence,
    concurrency,
    paged_bytes,
    paged_cache,
)

GIB = 1 << 30


def test_gemma_3_27b_has_one_full_and_six_sliding_groups(known_models: dict[str, Any]) -> None:
    cache = paged_cache(read_architecture(known_models["Gemma-3-27B"]["config"]))
    assert cache.block_bytes == 1_310_720
    assert sorted(group.window or 0 for group in cache.groups) == [0, *[1024] * 6]
    assert "8 layers of padding" in cache.rule
    assert blocks_per_sequence(cache, 131_072, 8192) == 11_654


@pytest.mark.parametrize(
    ("model", "tokens", "gigabytes"),
    [("Gemma-3-27B", 131_072, 15.28), ("gpt-oss-120b", 131_072, 5.14), ("Gemma-2-9B", 8192, 2.82)],
)
def test_hybrid_models(
    model: str, tokens: int, gigabytes: float, known_models: dict[str, Any]
) -> None:
    cache = paged_cache(read_architecture(known_models[model]["config"]))
    claimed = blocks_per_sequence(cache, tokens, 8192) * cache.block_bytes
    assert claimed / 1e9 == pytest.approx(gigabytes, abs=0.005)


def test_blocks_that_vllm_logged(known_models: dict[str, Any]) -> None:
    # github.com/vllm-project/vllm/issues/10511: Llama-3-8B on an 80 GB card
    cache = paged_cache(read_architecture(known_models["Llama-3-8B"]["config"]))
    assert int(53.29 * GIB) // cache.block_bytes == 27_284
    tokens = concurrency(cache, 27_284 * cache.block_bytes, 8192, 2048) * 8192
    assert tokens == 436_544
    # issues/14452: QwQ-32B, the shape of Qwen2.5-32B, on two pipeline stages of 32 layers
    whole = read_architecture(known_models["Qwen2.5-32B"]["config"])
    stage = paged_cache(replace(whole, layers=whole.layers[:32]))
    assert int(14.256 * GIB) // stage.block_bytes == 7299


def test_recurrent_layers_share_the_pages_of_attention(known_models: dict[str, Any]) -> None:
    cache = paged_cache(read_architecture(known_models["Jamba-v0.1"]["config"]))
    state = 2 * 8192 * (3 + 16)  # vLLM: a step less of the convolution, 16 bits throughout
    page = -(-state // (16 * 4096)) * 16 * 4096
    assert cache.block_bytes == 4 * page
    assert sum(group.state for group in cache.groups) == 7
    assert blocks_per_sequence(cache, 1, 2048) == 1 + 7 * 2


def test_a_model_of_states_needs_no_more_for_longer_sequences(known_models: dict[str, Any]) -> None:
    cache = paged_cache(read_architecture(known_models["Mamba-2.8B"]["config"]))
    assert blocks_per_sequence(cache, 1 << 20, 8192) == blocks_per_sequence(cache, 1, 1)
    assert cache.block_bytes == 64 * 2 * 5120 * (3 + 16)


@given(tokens=st.integers(1, 1 << 17), more=st.integers(0, 4096), in_flight=st.integers(1, 1 << 14))
def test_more_tokens_never_need_fewer_blocks(tokens: int, more: int, in_flight: int) -> None:
    groups = (Group(16), Group(32, window=512), Group(16, state=True))
    cache = PagedCache(1 << 20, groups, "")
    blocks = blocks_per_sequence(cache, tokens, in_flight)
    assert blocks <= blocks_per_sequence(cache, tokens + more, in_flight)
    assert blocks <= blocks_per_sequence(cache, tokens, in_flight + more)
    held = paged_bytes(cache, tokens, 3, in_flight).bytes
    assert concurrency(cache, held - cache.block_bytes, tokens, in_flight) == 3
