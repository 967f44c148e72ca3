"""KV cache bytes by layer kind: published models, and the real caches of transformers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from quantkit.core.errors import RefusedError
from quantkit.core.serving import CacheDtype, Degrees
from quantkit.planning.model import kv
from quantkit.planning.model.architecture import Architecture
from quantkit.planning.model.config import read_architecture
from quantkit.planning.serve.deploy import cache_rule
from quantkit.planning.serve.place import named_place

GIB = 1 << 30


def test_published_models(known_model: dict[str, Any]) -> None:
    architecture = read_architecture(known_model["config"])
    states = sum(kv.state_bytes(layer.mixer) for layer in architecture.layers)
    assert kv.cache_bytes(architecture, 1).bytes == known_model["kv_full"] + states
    assert growing(architecture) == known_model["kv_growing"]
    assert states == known_model["kv_constant"]


def growing(architecture: Architecture, dtype: CacheDtype = "16-bit", tp: int = 1) -> int:
    """Bytes that a further token of a long sequence takes."""
    shorter, longer = (
        kv.cache_bytes(architecture, tokens, dtype=dtype, tp=tp).bytes
        for tokens in ((1 << 20) - 1, 1 << 20)
    )
    return longer - shorter


@pytest.mark.parametrize("prompt", [5, 24])
def test_real_caches_to_the_byte(small_config: Any, prompt: int) -> None:
    measure(small_config, prompt, torch.bfloat16, "16-bit")


@pytest.mark.parametrize("name", ["falcon-gqa", "mistral", "deepseek-v2", "jamba", "mamba"])
def test_real_caches_in_32_bits(small: Callable[[str], Any], name: str) -> None:
    measure(small(name), 24, torch.float32, "32-bit")


def measure(config: Any, prompt: int, dtype: torch.dtype, cached: CacheDtype) -> None:
    """What `plan` tells of a deployment with transformers is what its cache takes."""
    architecture = read_architecture(config.to_dict())
    planned = kv.dynamic_cache(architecture, prompt, 2, cached)
    deployed = cache_rule(architecture, named_place("4090", "transformers", Degrees()), cached)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    tokens = torch.randint(1, 90, (2, prompt + 1))
    with torch.no_grad():
        output = model(tokens[:, :prompt], use_cache=True)
        name = "past_key_values" if "past_key_values" in output else "cache_params"
        cache = output[name]
        assert visible(cache) == planned.visible.bytes
        assert stored(cache) == planned.after_prefill.bytes
        grows = max(keys_and_values(layer) for layer in cache.layers)
        assert deployed(prompt, 2).bytes == stored(cache) + grows
        model(tokens[:, prompt:], use_cache=True, **{name: cache})
    assert stored(cache) == planned.decoding.bytes


def tensors(held: Any) -> Iterator[torch.Tensor]:
    """Floating-point tensors inside lists and dicts."""
    if isinstance(held, torch.Tensor):
        if held.is_floating_point():
            yield held
    elif isinstance(held, Mapping | list | tuple):
        for entry in held.values() if isinstance(held, Mapping) else held:
            yield from tensors(entry)


def visible(cache: Any) -> int:
    return sum(t.numel() * t.element_size() for layer in cache.layers for t in tensors(vars(layer)))


def keys_and_values(layer: Any) -> int:
    held = (getattr(layer, "keys", None), getattr(layer, "values", None))
    return sum(t.numel() * t.element_size() for t in held if t is not None)


def stored(cache: Any) -> int:
    """Bytes of the memory behind the tensors, which may be views."""
    found = [t.untyped_storage() for layer in cache.layers for t in tensors(vars(layer))]
    return sum({storage.data_ptr(): storage.nbytes() for storage in found}.values())


GEMMA_3N_E4B: dict[str, Any] = {
    "model_type": "gemma3n",
    "text_config": {"intermediate_size": 16384},
}


FALCON_40B: dict[str, Any] = {
    "model_type": "falcon",
    "num_hidden_layers": 60,
    "hidden_size": 8192,
    "num_attention_heads": 128,
    "num_kv_heads": 8,
    "vocab_size": 65024,
    "new_decoder_architecture": True,
}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Mistral-7B-v0.1", (4_063_232, 8_388_608, 4_194_304)),
        ("Gemma-2-9B", (16_343_040, 22_020_096, 16_687_104)),
        ("gpt-oss-20b", (2_334_720, 3_145_728, 2_383_872)),
        ("Gemma-3n-E4B", (1_540_096, 2_621_440, 1_581_056)),
    ],
)
def test_caches_measured_at_full_width(
    model: str, expected: tuple[int, ...], known_models: dict[str, Any]
) -> None:
    config = known_models[model]["config"] if model in known_models else GEMMA_3N_E4B
    text: dict[str, Any] = config.get("text_config", config) | {"sliding_window": 32}
    planned = kv.dynamic_cache(read_architecture(config | {"text_config": text}), 64)
    figures = (planned.visible, planned.after_prefill, planned.decoding)
    assert tuple(figure.bytes for figure in figures) == expected


def test_cache_dtypes(known_models: dict[str, Any]) -> None:
    architecture = read_architecture(known_models["Llama-3-8B"]["config"])
    expected: dict[CacheDtype, int] = {
        "16-bit": 131_072,
        "fp8": 65_536,
        "int8-token-head": 67_584,
        "fp8-token-head": 67_584,
        "nvfp4": 36_864,
    }
    assert {d: growing(architecture, d) for d in expected} == expected


def test_latents_have_no_scales_of_heads(known_models: dict[str, Any]) -> None:
    architecture = read_architecture(known_models["DeepSeek-V3"]["config"])
    assert growing(architecture, "fp8") == 61 * 576
    assert growing(architecture, tp=8) == 70_272
    with pytest.raises(RefusedError, match="latent"):
        growing(architecture, "nvfp4")


def test_a_rank_has_at_least_one_head(known_models: dict[str, Any]) -> None:
    # github.com/vllm-project/vllm/issues/21348: 367,404 tokens are 8.23 + 8.23 GiB at TP 4
    architecture = read_architecture(known_models["Qwen3-235B-A22B"]["config"])
    token = growing(architecture, tp=4)
    assert token == growing(architecture, tp=8)
    assert 367_404 * token / GIB == pytest.approx(8.23 + 8.23, abs=0.01)


def test_llama_2_70b_needs_80_gib_for_128_sequences(known_models: dict[str, Any]) -> None:
    architecture = read_architecture(known_models["Llama-2-70B"]["config"])
    assert kv.cache_bytes(architecture, 2048, 128).bytes == 80 * GIB


def test_windows_stop_growing(known_models: dict[str, Any]) -> None:
    architecture = read_architecture(known_models["Gemma-3-27B"]["config"])
    held = kv.cache_bytes(architecture, 131_072).bytes
    windows = sum(
        (kv.window(layer.mixer) or 0) * kv.token_bytes(layer.mixer) for layer in architecture.layers
    )
    assert held == 81_920 * 131_072 + windows
    assert held / 1e9 == pytest.approx(11.17, abs=0.005)
    full = kv.cache_bytes(architecture, 1).bytes * 131_072
    assert full / 1e9 == pytest.approx(66.57, abs=0.005)


def test_nothing_is_cut_within_the_window(small_config: Any) -> None:
    architecture = read_architecture(small_config.to_dict())
    states = sum(kv.state_bytes(layer.mixer) for layer in architecture.layers)
    token = sum(kv.token_bytes(layer.mixer) for layer in architecture.layers)
    assert kv.cache_bytes(architecture, 3, 2).bytes == 2 * (3 * token + states)


def test_falcon_caches_its_grouped_heads_once_for_each_query() -> None:
    """Falcon-40B: for 8 KV heads 128 are cached: 60 blocks, keys and values of 64 numbers."""
    architecture = read_architecture(FALCON_40B)
    place = named_place("h200", "transformers", Degrees())
    token = 60 * 2 * 128 * 64 * 2
    assert token * 8 * 2048 == 30 * GIB
    held = cache_rule(architecture, place, "16-bit")(2048, 8)
    assert "every query head" in held.rule
    assert held.bytes == (60 + 1) * token * 8 * 2048 // 60
