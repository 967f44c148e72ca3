from collections.abc import Callable
from typing import Any

import pytest

from quantkit.checkpoint.stored import DTYPE_BYTES
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.parameters import inventory_from_config
from quantkit.planning.model.weights import PlannedModel, planned_model, stored_build, weigh
from quantkit.planning.serve.hardware import find_gpu
from quantkit.planning.serve.speed import (
    decode_bound,
    prefill_bound,
    prefill_operations,
    read_bytes,
    touched_experts,
)

Planned = Callable[..., PlannedModel]
W4_8B, W4_70B = 5_700_595_200, 39_500_407_552


@pytest.mark.parametrize(
    ("gpu", "read", "expected"),
    [
        ("3060", 16_060_522_496, 22),
        ("4090", 16_060_522_496, 63),
        ("h100", 16_060_522_496, 209),
        ("3060", W4_8B, 63),
        ("4090", W4_8B, 177),
        ("h100", W4_8B, 588),
        ("h100", W4_70B, 85),
        ("h200", W4_70B, 122),
        ("m3 ultra", W4_70B, 21),
        ("h200", 141_107_412_992, 34),
    ],
)
def test_bounds_of_whole_files_read_for_each_token(gpu: str, read: int, expected: int) -> None:
    bandwidth = find_gpu(gpu).bandwidth
    assert bandwidth is not None
    assert round(decode_bound(read, 0, 1, bandwidth).tokens_per_second) == expected


def test_a_batch_shares_the_weights_and_not_the_cache() -> None:
    one, many = (decode_bound(10**9, n * 10**6, n, 1e12).tokens_per_second for n in (1, 64))
    assert many / one == pytest.approx(64 * 1001 / 1064)


def test_embedding_rows_are_not_read_unless_they_are_the_head(planned: Planned) -> None:
    tower = 423_060_336 * 2  # is run for an image, not for a token
    tables = (("Llama-3-8B", 128_256 * 4096 * 2), ("SmolLM2-135M", 0), ("Gemma-3-27B", tower))
    for name, less in tables:
        model = planned(name)
        build = stored_build(model)
        assert read_bytes(model, build, 1) == sum(weigh(model, build).values()) - less


def test_tables_of_rows_beside_a_tied_embedding_are_not_read(
    small: Callable[[str], Any],
) -> None:
    """Gemma 3n's embedding of each layer: 96 rows of 10 blocks * 12."""
    config = small("gemma3n").to_dict()
    architecture = read_architecture(config)
    assert architecture.tied
    model = planned_model("3n", inventory_from_config(config, architecture), architecture)
    build = stored_build(model)
    (table,) = [t for t in model.inventory.tensors if "per_layer.weight" in t.name]
    assert table.shape == (96, 120)
    size = 96 * 120 * DTYPE_BYTES[table.dtype]
    assert read_bytes(model, build, 1) == sum(weigh(model, build).values()) - size


def test_a_batch_touches_more_experts(planned: Planned) -> None:
    model = planned("Qwen3-30B-A3B")
    experts = model.architecture.layers[0].feed_forward
    assert touched_experts(experts, 1) == pytest.approx(8)  # type: ignore[arg-type]  # it has some
    assert touched_experts(experts, 1000) == pytest.approx(128)  # type: ignore[arg-type]
    parts = weigh(model, stored_build(model))
    one = read_bytes(model, stored_build(model), 1)
    rest = sum(parts.values()) - parts["experts"] - parts["embedding"]
    assert one == pytest.approx(rest + parts["experts"] / 16)


def test_a_prompt_costs_two_operations_a_weight_and_the_attention(planned: Planned) -> None:
    """Llama-3-8B: linears of the blocks, and half the pairs of tokens of 32 layers of 32 heads."""
    model = planned("Llama-3-8B")
    for tokens in (1024, 8192):
        expected = 2 * 6_979_321_856 * tokens + 2 * 32 * 32 * 128 * tokens**2
        assert prefill_operations(model, tokens) == pytest.approx(expected)
    assert prefill_bound(model, 1024, 165e12).tokens_per_second == pytest.approx(11_600, rel=0.01)


def test_windows_and_idle_experts_save_operations(planned: Planned) -> None:
    windowed, full = (
        prefill_operations(planned("Mistral-7B-v0.1", sliding_window=w), 32768)
        for w in (4096, None)
    )
    saved = 4 * 32 * 128 * 32 * (32768**2 // 2 - (4096 * 32768 - 4096**2 // 2))
    assert full - windowed == pytest.approx(saved)
    sparse = prefill_operations(planned("Qwen3-30B-A3B"), 1)
    assert 2 * 2.5e9 < sparse < 2 * 3.4e9  # "A3B"
