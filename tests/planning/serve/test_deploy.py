"""Budgets: worked examples to the byte, engines' own logs, and what must hold for any load."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.gpu import Gpu
from quantkit.core.serving import Degrees, Deployment, Load
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.kv import cache_bytes
from quantkit.planning.model.parallel import stages_of
from quantkit.planning.model.parameters import inventory_from_config
from quantkit.planning.model.weights import (
    Build,
    PlannedModel,
    planned_model,
    recipe_build,
    stored_build,
)
from quantkit.planning.serve.activations import activation_peak
from quantkit.planning.serve.deploy import capacity, deploy, largest, load_of
from quantkit.planning.serve.paging import paged_cache
from quantkit.planning.serve.place import Place
from quantkit.planning.serve.settings import settings_of
from quantkit.recipes.loader import build_recipe

Planned = Callable[..., PlannedModel]
GIB = 2**30
SHORT = Load(4096)
CHANNEL_8 = {"group_size": "channel", "bits": 8}


SMALL = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 1 << 18,
}


def small() -> PlannedModel:
    architecture = read_architecture(SMALL)
    return planned_model("small", inventory_from_config(SMALL, architecture), architecture)


def place(gib: float, engine: str = "vllm", tensor: int = 1, **stated: Any) -> Place:
    gpu, degrees = Gpu("stated", int(gib * GIB), 1e12), Degrees(tensor)
    return Place(gpu, engine, settings_of(engine, gpu, degrees, stated), degrees)


def packed(model: PlannedModel, **flags: Any) -> Build:
    return recipe_build(model, build_recipe("gptq-compressed", **{"group_size": 128} | flags))


def deployed(
    model: PlannedModel, where: Place, load: Load = SHORT, build: Build | None = None
) -> Deployment:
    return deploy(model, build or packed(model), where, load)


@pytest.mark.parametrize(
    ("name", "gib", "chunk", "rows", "activations", "cache", "tokens"),
    [
        ("Llama-3-8B", 11.6, 2048, 256, 406_716_416, 3_848_422_576, 29_360),
        ("Qwen3-32B", 23.52, 2048, 256, 589_889_536, 1_937_518_099, 7_376),
        ("Llama-3-70B", 79.2, 8192, 1024, 2_465_726_464, 34_767_751_694, 106_096),
    ],
)
def test_worked_examples(
    planned: Planned,
    name: str,
    gib: float,
    chunk: int,
    rows: int,
    activations: int,
    cache: int,
    tokens: int,
) -> None:
    model = planned(name)
    where = place(gib, slack=0)
    found = deployed(model, where)
    assert (where.settings.chunk, where.settings.rows) == (chunk, rows)
    assert activation_peak(model.architecture, chunk, rows).bytes == activations
    assert (found.available, found.tokens) == (cache, tokens)


@pytest.mark.parametrize(
    ("chunk", "rows", "cache", "tokens"),
    [(8192, 1024, 1_598_352_654, 4_864), (2048, 256, 3_447_647_502, 10_512)],
)
def test_70b_in_8_bits_leaves_room_by_a_smaller_chunk(
    planned: Planned, chunk: int, rows: int, cache: int, tokens: int
) -> None:
    model = planned("Llama-3-70B")
    build = packed(model, **CHANNEL_8)
    found = deployed(model, place(79.2, slack=0, chunk=chunk, rows=rows), build=build)
    linears = sum(kind.count for kind in model.kinds if kind.quantizable)
    shapes = 16 * linears  # fp8 stores no weight_shape
    assert (found.available + shapes, found.tokens) == (cache, tokens)


def test_two_ranks_of_70b(planned: Planned) -> None:
    """The worked example shares `weight_shape`, 8 bytes a linear, and rounds overheads in one."""
    model = planned("Llama-3-70B")
    found = deployed(model, place(23.52, tensor=2, slack=0))
    assert activation_peak(model.architecture, 2048, 256, 2).bytes == 440_270_848
    assert (found.available + 8 * 560 - 1, found.tokens) == (787_403_718, 4_800)


def test_the_log_of_vllm_issue_10511(planned: Planned) -> None:
    """Llama-3-8B on 79.22 GiB at 0.90: 14.96 of weights, 1.79 outside torch, 1.26 at the peak."""
    model = planned("Llama-3-8B")
    outside = f"{int(1.79 * GIB)}B"
    where = place(79.22, utilization=0.9, cuda_context=0, graphs=0, slack=0, non_torch=outside)
    found = deployed(model, where, build=stored_build(model))
    assert found.weights / GIB == pytest.approx(14.96, abs=0.005)
    room = found.available + activation_peak(model.architecture, 8192, 1024).bytes - 1.26 * GIB
    assert room / GIB == pytest.approx(53.29, abs=0.01)
    assert capacity(model.architecture, where, Load(8192), int(53.29 * GIB)) == 436_544


def test_windows_hold_as_many_tokens_as_vllm_would_log(planned: Planned) -> None:
    """Blocks over those of a sequence, which in a window's groups need not grow, times its length.

    vLLM 0.33 source, get_kv_cache_capacity: int(concurrency * max_model_len).
    """
    architecture = planned("Gemma-3-27B").architecture
    paged = paged_cache(architecture)
    where, load = place(80, chunk=8192), Load(131_072)
    blocks = 30_000
    found = capacity(architecture, where, load, blocks * paged.block_bytes + 5)
    assert found == int(blocks / 11_654 * 131_072)


def test_the_rank_with_least_room_decides(planned: Planned) -> None:
    """vLLM issue 14452, QwQ-32B on two stages: 7,299 blocks are the smaller rank's 14.26 GiB."""
    model = planned("Qwen2.5-32B", max_position_embeddings=1 << 22)
    stage = stages_of(64, 2)[1].of(model.architecture)
    assert 7299 * paged_cache(stage).block_bytes / GIB == pytest.approx(14.256, abs=5e-4)
    two = Degrees(1, 2)
    where = replace(place(31.36), degrees=two)
    found = deployed(model, where)
    assert any(f.name == "weights: head" for f in found.fixed)  # as heavy as an embedding, + norm
    alone = [
        deploy(model, packed(model), where, replace(found.load, context=found.longest + d)).fits
        for d in (0, 1)
    ]
    assert alone == [True, False]


def test_one_kv_head_a_rank_in_the_log_of_vllm_issue_21348(planned: Planned) -> None:
    architecture = planned("Qwen3-235B-A22B").architecture
    assert cache_bytes(architecture, 367_404, tp=4).bytes / GIB == pytest.approx(16.468, abs=5e-4)


def test_128_sequences_of_llama_2_70b_take_80_gib(planned: Planned) -> None:
    architecture = planned("Llama-2-70B").architecture
    assert cache_bytes(architecture, 2048, 128).bytes == 80 * GIB


@pytest.mark.parametrize("engine", ["vllm", "sglang", "transformers"])
@pytest.mark.parametrize("name", ["Llama-3-8B", "Gemma-2-9B", "Mamba-2.8B", "DeepSeek-V2-Lite"])
def test_the_longest_context_fits_and_one_more_does_not(
    planned: Planned, engine: str, name: str
) -> None:
    model = planned(name, max_position_embeddings=1 << 22)
    where, build = place(44, engine), stored_build(planned(name))
    found = deployed(model, where, Load(4096, 3), build)
    for load, more in (
        (Load(found.longest, 3), Load(found.longest + 1, 3)),
        (Load(4096, found.most), Load(4096, found.most + 1)),
    ):
        if 0 < load.context < 1 << 22 and load.sequences:
            assert deployed(model, where, load, build).fits
            assert not deployed(model, where, more, build).fits


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 1 << 17), st.integers(1, 64))
def test_figures_add_up_and_grow_with_the_load(context: int, sequences: int) -> None:
    model = small()
    found = deployed(model, place(40), Load(context, sequences))
    more = deployed(model, place(40), Load(context + 1, sequences + 1))
    assert found.total == sum(f.bytes for f in found.fixed) + found.cache.bytes
    assert found.available - found.cache.bytes == found.budget.bytes - found.total
    assert found.fits == (found.longest >= context) == (found.most >= sequences)
    assert more.cache.bytes > found.cache.bytes
    assert all(figure.rule for figure in (*found.fixed, found.cache, found.budget))


def test_an_8_bit_cache_takes_half(planned: Planned) -> None:
    model = planned("Llama-3-8B")
    sixteen, eight = (
        deployed(model, place(24), Load(8192, 4, cache)) for cache in ("16-bit", "fp8")
    )
    assert sixteen.cache.bytes == 2 * eight.cache.bytes
    assert eight.tokens - 2 * sixteen.tokens in (0, 16)


@pytest.mark.parametrize(
    ("context", "sequences", "kv", "error"),
    [
        (8193, 1, 16, RefusedError),
        (0, 1, 16, InputError),
        (2**40, 1, 16, InputError),
        (None, 0, 16, InputError),
        (None, 10**20, 16, InputError),
        (None, 1, 4, InputError),
    ],
)
def test_loads_that_nothing_serves_are_refused(
    planned: Planned, context: int | None, sequences: int, kv: Any, error: type[Exception]
) -> None:
    architecture = planned("Llama-3-8B", max_position_embeddings=8192).architecture
    assert load_of(architecture, 8192, 1, 8) == Load(8192, 1, "fp8")
    with pytest.raises(error):
        load_of(architecture, context, sequences, kv)


def test_largest_is_found_by_halving() -> None:
    assert [largest(lambda n: n <= 37, limit) for limit in (10, 37, 1000)] == [10, 37, 37]
    assert largest(lambda _: False, 8) == 0
