"""Models that are measured: all small families as if unknown, and kinds that the table lacks."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

from quantkit.core.errors import RefusedError
from quantkit.planning.model import kv
from quantkit.planning.model.architecture import Experts, Recurrent, Stored
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.described import describe
from quantkit.planning.model.measured import measured_model
from quantkit.planning.model.parameters import inventory_from_config, parameter_count

TOKENS = 24

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
MAMBA = {"mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_conv": 4}
UNKNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "hybrid of experts and Mamba": (
        "nemotron_h",
        {
            **SMALL,
            "head_dim": 16,
            "layers_block_type": ["mamba", "moe", "attention", "moe"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 32,
            "ssm_state_size": 8,
            "n_groups": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 40,
        },
    ),
    "attention and Mamba side by side": (
        "falcon_h1",
        {**SMALL, **MAMBA, "mamba_d_ssm": 128, "mamba_n_groups": 1},
    ),
    "short convolutions": (
        "lfm2",
        {**SMALL, "layer_types": ["conv", "conv", "full_attention", "conv"]},
    ),
    "gated delta rule": (
        "qwen3_5_text",
        {
            **SMALL,
            "head_dim": 32,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 12,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    ),
    "window": ("exaone4", {**SMALL, "sliding_window": 8, "layer_types": None}),
    "experts": ("ernie4_5_moe", {**SMALL, "moe_num_experts": 4, "moe_k": 2}),
}


@pytest.fixture(params=UNKNOWN)
def unknown(request: pytest.FixtureRequest) -> Any:
    """The transformers config of a small model whose type the table lacks."""
    model_type, values = UNKNOWN[request.param]
    return CONFIG_MAPPING[model_type](**values)


def test_types_that_the_table_lacks_weigh_what_transformers_builds(unknown: Any) -> None:
    described = describe(unknown.to_dict() | {"dtype": "bfloat16"}, has_files=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(unknown)
    assert described.measured is not None
    assert parameter_count(described.measured) == sum(p.numel() for p in model.parameters())
    assert not any(tensor.part == "tower" for tensor in described.measured.tensors)


def test_their_caches_are_those_of_a_run_with_weights(unknown: Any) -> None:
    architecture, _ = measured_model(unknown.to_dict(), "BF16")
    planned = kv.dynamic_cache(architecture, TOKENS, 2)
    model = AutoModelForCausalLM.from_config(unknown).to(torch.bfloat16).eval()
    with torch.no_grad():
        cache = model(torch.randint(1, 90, (2, TOKENS)), use_cache=True).past_key_values
    held = sum(t.nbytes for layer in cache.layers for t in tensors(vars(layer)))
    assert planned.visible.bytes == held


def tensors(held: Any) -> Iterator[torch.Tensor]:
    """Floating-point tensors inside lists and dicts."""
    if isinstance(held, torch.Tensor):
        if held.is_floating_point():
            yield held
    elif isinstance(held, dict | list | tuple):
        for entry in held.values() if isinstance(held, dict) else held:
            yield from tensors(entry)


def test_a_known_type_is_measured_as_the_table_has_it(small_config: Any) -> None:
    config = small_config.to_dict()
    listed = read_architecture(config)
    architecture, inventory = measured_model(config, listed.dtype)
    assert parameter_count(inventory) == parameter_count(inventory_from_config(config, listed))
    assert architecture.context in (listed.context, None)
    found = (architecture.hidden, architecture.vocabulary, architecture.tied)
    assert found == (listed.hidden, listed.vocabulary, listed.tied)
    for tokens in (5, 24):
        measured, told = (kv.dynamic_cache(each, tokens) for each in (architecture, listed))
        if listed.model_type != "falcon":  # its grouped heads are cached as query heads
            assert measured.visible.bytes == told.visible.bytes
    for ours, theirs in zip(architecture.layers, listed.layers, strict=True):
        if isinstance(theirs.feed_forward, Experts):
            assert ours.feed_forward == theirs.feed_forward


def test_an_unlisted_tower_is_measured_beside_a_listed_text_model(
    small: Callable[[str], Any],
) -> None:
    text = small("llama").to_dict() | {"dtype": "bfloat16"}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    vision |= {"num_attention_heads": 4, "image_size": 28, "patch_size": 14}
    config = {"model_type": "internvl", "text_config": text, "vision_config": vision}
    described = describe(config, has_files=False)
    whole = CONFIG_MAPPING["internvl"](text_config=text, vision_config=vision)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(whole)
    inventory = described.inventory
    assert inventory is not None
    assert parameter_count(inventory) == sum(p.numel() for p in model.parameters())
    assert (described.measured, inventory.uncounted) == (None, ())
    assert {tensor.part for tensor in described.towers} == {"tower"}
    assert describe(config, has_files=True).towers == ()


def test_states_and_compressed_vectors() -> None:
    every = Stored(1, 512, every=4)
    assert kv.token_bytes(every) == 256
    assert kv.token_bytes(Stored(4, 64), tp=2) == 256
    assert kv.state_bytes(Recurrent("measured", 10, 4, 100)) == 2 * 40 + 400


def test_experts_that_sort_tokens_by_values_are_refused_with_the_reason() -> None:
    config = CONFIG_MAPPING["jetmoe"](num_hidden_layers=2).to_dict()
    with pytest.raises(RefusedError, match="cannot size model_type 'jetmoe'") as refusal:
        describe(config, has_files=False)
    assert "sort tokens by values" in (refusal.value.why or "")
    assert "safetensors" in (refusal.value.hint or "")


def test_what_cannot_be_built_is_refused_with_the_reason(small: Callable[[str], Any]) -> None:
    config = small("llama").to_dict()
    custom = {"auto_map": {"AutoConfig": "configuration_new.NewConfig"}}
    for model_type, more, why in (("new", {}, "does not recognize"), ("new", custom, "its code")):
        with pytest.raises(RefusedError, match="cannot build model_type 'new'") as refusal:
            describe(config | more | {"model_type": model_type}, has_files=False)
        assert why in str(refusal.value.why)
    llama = describe(config | custom | {"model_type": "new"}, has_files=True)
    assert (llama.inventory, llama.is_llama) == (None, True)
    assert "its cache that of a Llama" in llama.notes[0]


NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "vocab_size": 131072,
    "hidden_size": 2688,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 1856,
    "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 6,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "dtype": "bfloat16",
}
"""Nemotron-3-Nano-30B-A3B: 23 Mamba-2 layers, 23 of experts and 6 of attention."""


def test_a_published_hybrid_at_full_size() -> None:
    """It was planned as a Llama of 102 B parameters."""
    described = describe(NEMOTRON, has_files=False)
    assert described.inventory is not None
    assert parameter_count(described.inventory) == 31_577_937_344
    layers = described.architecture.layers
    states = 23 * (2 * 4 * (64 * 64 + 2 * 8 * 128) + 4 * 64 * 64 * 128)
    one, two = (kv.cache_bytes(described.architecture, tokens).bytes for tokens in (1, 2))
    assert (two - one, 2 * one - two) == (6 * 2 * 2 * 128 * 2, states)
    experts = Experts(128, active=6, width=1856, shared_width=3712, gated=False)
    assert sum(layer.feed_forward == experts for layer in layers) == 23
