"""Public models by their configs and known sizes, and small models of every family.

The configs hold the facts of the models' own files, and leave out what those leave out.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quantkit.core.serving import Serving
from quantkit.planning.builds import plan_builds
from quantkit.planning.model.config import read_architecture
from quantkit.planning.model.parameters import inventory_from_config
from quantkit.planning.model.weights import PlannedModel, planned_model

MODELS: dict[str, dict[str, Any]] = {
    model["name"]: model
    for model in json.loads((Path(__file__).parent / "known_models.json").read_text())
}

SIZES = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
ATTENTION = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 48}
LATENT = {
    **SIZES,
    "intermediate_size": 48,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "moe_intermediate_size": 24,
    "num_experts_per_tok": 2,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
WINDOW = {"sliding_window": 8, "head_dim": 24}

SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", ATTENTION),
    "llama-biased": ("llama", {**ATTENTION, "attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("llama", {**ATTENTION, "tie_word_embeddings": True, "head_dim": 24}),
    "mistral": ("mistral", {**ATTENTION, **WINDOW}),
    "mistral-nemo": ("mistral", {**ATTENTION, "sliding_window": None, "head_dim": 24}),
    "mixtral": ("mixtral", {**ATTENTION, **EXPERTS}),
    "qwen2": ("qwen2", ATTENTION),
    "qwen2-window": (
        "qwen2",
        {**ATTENTION, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {**ATTENTION, "head_dim": 24}),
    "qwen3-moe": (
        "qwen3_moe",
        {**ATTENTION, **EXPERTS, "moe_intermediate_size": 24, "mlp_only_layers": [1]},
    ),
    "qwen3-next": (
        "qwen3_next",
        {
            **ATTENTION,
            "head_dim": 24,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 20,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 12,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    ),
    "gemma": ("gemma", {**ATTENTION, "head_dim": 24}),
    "gemma2": ("gemma2", {**ATTENTION, **WINDOW}),
    "gemma3": ("gemma3_text", {**ATTENTION, **WINDOW, "num_hidden_layers": 7}),
    "gemma3n": (
        "gemma3n_text",
        {
            **ATTENTION,
            **WINDOW,
            "num_hidden_layers": 10,
            "num_kv_shared_layers": 3,
            "vocab_size_per_layer_input": 96,
            "hidden_size_per_layer_input": 12,
            "laurel_rank": 6,
        },
    ),
    "deepseek-v2": ("deepseek_v2", {**LATENT, "q_lora_rank": None, "first_k_dense_replace": 1}),
    "deepseek-v3": (
        "deepseek_v3",
        {**LATENT, "q_lora_rank": 24, "first_k_dense_replace": 2, "n_group": 2, "topk_group": 1},
    ),
    "gpt-oss": ("gpt_oss", {**ATTENTION, **EXPERTS, **WINDOW}),
    "llama4": (
        "llama4_text",
        {
            **ATTENTION,
            "num_local_experts": 4,
            "head_dim": 16,
            "intermediate_size_mlp": 40,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 8,
        },
    ),
    "phi3": ("phi3", {**ATTENTION, "sliding_window": 8, "pad_token_id": 0}),
    "falcon-mqa": ("falcon", SIZES),
    "falcon-gqa": ("falcon", {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-serial": (
        "falcon",
        {**SIZES, "parallel_attn": False, "multi_query": False, "num_kv_heads": 4, "bias": True},
    ),
    "bloom": ("bloom", SIZES),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 40}),
    "jamba": (
        "jamba",
        {
            **ATTENTION,
            "num_experts": 4,
            "attn_layer_period": 4,
            "attn_layer_offset": 2,
            "mamba_dt_rank": 6,
            "use_mamba_kernels": False,
        },
    ),
    "smollm3": ("smollm3", {**ATTENTION, "pad_token_id": 0}),
    "granite": ("granite", ATTENTION),
    "seed-oss": ("seed_oss", ATTENTION),
    "olmo2": ("olmo2", ATTENTION),
    "olmoe": ("olmoe", {**ATTENTION, "num_experts": 4, "num_experts_per_tok": 2}),
    "qwen2-moe": (
        "qwen2_moe",
        {
            **ATTENTION,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 20,
        },
    ),
    "glm4": ("glm4", {**ATTENTION, "head_dim": 16, "pad_token_id": 0}),
    "glm4-moe": (
        "glm4_moe",
        {
            **ATTENTION,
            "head_dim": 16,
            "use_qk_norm": True,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 2,
        },
    ),
    "cohere": ("cohere", {**ATTENTION, "use_qk_norm": True}),
    "cohere2": ("cohere2", {**ATTENTION, "sliding_window": 8}),
    "stablelm": ("stablelm", {**ATTENTION, "use_qkv_bias": True}),
    "stablelm-parallel": ("stablelm", {**ATTENTION, "use_parallel_residual": True}),
    "starcoder2": ("starcoder2", ATTENTION),
    "nemotron": ("nemotron", {**ATTENTION, "head_dim": 24}),
    "gpt-neox": ("gpt_neox", {**SIZES, "intermediate_size": 48}),
    "gptj": ("gptj", {"vocab_size": 96, "n_embd": 64, "n_layer": 3, "n_head": 4, "rotary_dim": 8}),
    "codegen": (
        "codegen",
        {"vocab_size": 96, "n_embd": 64, "n_layer": 3, "n_head": 4, "rotary_dim": 8},
    ),
    "phi": ("phi", {**ATTENTION, "num_key_value_heads": 4}),
    "opt": ("opt", {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 64}),
    "gpt-bigcode": ("gpt_bigcode", {"vocab_size": 96, "n_embd": 64, "n_layer": 3, "n_head": 4}),
    "mpt": ("mpt", {"vocab_size": 96, "d_model": 64, "n_layers": 3, "n_heads": 4}),
    "mamba": (
        "mamba",
        {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3, "use_bias": True},
    ),
    "mamba2": (
        "mamba2",
        {
            "vocab_size": 96,
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 2,
            "state_size": 12,
        },
    ),
}


def serving_of(model: PlannedModel, *options: Any, **named: Any) -> Serving:
    """The builds of a model, with the options of `plan_builds`."""
    found = plan_builds(model, *options, **named).serving
    assert found is not None
    return found


@pytest.fixture(scope="session")
def known_models() -> dict[str, dict[str, Any]]:
    """Every model by its name: `config`, `parameters`, and the bytes of its 16-bit KV cache."""
    return MODELS


@pytest.fixture(scope="session")
def planned() -> Callable[..., PlannedModel]:
    """planned(name, **changes): a known model, read from its config with some of it changed."""

    def read(name: str, **changes: Any) -> PlannedModel:
        config = MODELS[name]["config"] | changes
        architecture = read_architecture(config)
        return planned_model(name, inventory_from_config(config, architecture), architecture)

    return read


@pytest.fixture(params=MODELS, scope="session")
def known_model(request: pytest.FixtureRequest) -> dict[str, Any]:
    """One of `known_models` after the other."""
    return MODELS[request.param]


@pytest.fixture(params=SMALL)
def small_config(request: pytest.FixtureRequest) -> Any:
    """The transformers config of a small model, one family after the other."""
    return build_config(request.param)


@pytest.fixture
def small() -> Callable[[str], Any]:
    """The transformers config of the small model of a name in `SMALL`."""
    return build_config


def build_config(name: str) -> Any:
    """A config of transformers, which fills in what is not given."""
    from transformers import CONFIG_MAPPING

    model_type, values = SMALL[name]
    return CONFIG_MAPPING[model_type](**values)
