"""A tiny model with random weights of every type of transformers that generates text.

Each type's own config class says what there is; the names of its settings say what shrinks.
"""

import re
from pathlib import Path
from typing import Any

VOCABULARY = 288
SIZES = {
    128: "hidden_size d_model n_embd dim embed_dim hidden_dim model_dim out_hidden_size "
    "text_hidden_size adapter_in_dim adapter_out_dim adapter_input_size moe_hidden_size "
    "hidden_size_global backbone_hidden_size",
    256: "intermediate_size ffn_dim d_ff n_inner ffn_hidden_size encoder_ffn_dim decoder_ffn_dim "
    "shared_expert_intermediate_size moe_shared_expert_intermediate_size intermediate_size_mlp "
    "dense_intermediate_size shared_intermediate_size projection_hidden_dim mamba_d_ssm "
    "projector_hidden_size encoder_hash_byte_group_vocab",
    64: "moe_intermediate_size q_lora_rank kv_lora_rank expert_ffn_hidden_size expert_hidden_size "
    "expert_ff_hidden_size mamba_d_head share_expert_dim "
    "shared_experts_intermediate_size hc_lowrank",
    32: "head_dim v_head_dim qk_nope_head_dim qk_rope_head_dim attention_head_dim "
    "linear_key_head_dim linear_value_head_dim linear_head_dim global_head_dim "
    "kv_channels rotary_dim swa_head_dim index_head_dim",
    16: "state_size ssm_state_size mamba_d_state mamba_state_dim hidden_size_per_layer_input "
    "rel_extent index_topk",
    8: "adapter_rank",
    4: "num_attention_heads n_head num_heads encoder_attention_heads decoder_attention_heads "
    "num_experts n_routed_experts num_local_experts moe_num_experts num_routed_experts "
    "linear_num_value_heads linear_num_heads mamba_n_heads mamba_num_heads num_q_heads n_heads "
    "swa_num_attention_heads index_n_heads attention_heads router_hidden_size",
    2: "num_hidden_layers n_layer num_layers n_layers depth encoder_layers decoder_layers "
    "num_key_value_heads num_kv_heads multi_query_group_num num_experts_per_tok top_k moe_top_k "
    "moe_topk moe_k num_experts_per_token linear_num_key_heads num_global_key_value_heads "
    "swa_num_key_value_heads zero_expert_num layers",
    1: "n_group topk_group n_groups mamba_n_groups n_shared_experts moe_num_shared_experts "
    "first_k_dense_replace num_nextn_predict_layers num_expert_group num_shared_experts",
    512: "max_position_embeddings n_positions max_seq_len sliding_window sliding_window_size",
    VOCABULARY: "vocab_size vocab_size_per_layer_input n_vocab",
}
SIZE_OF = {name: size for size, names in SIZES.items() for name in names.split()}
SCALES = {"image_size": 32, "patch_size": 16, "num_position_embeddings": 64}
HEADS = ("num_attention_heads", "num_heads", "n_head")
KV_HEADS = ("num_key_value_heads", "num_kv_heads")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
MOST_LAYERS = 8
HEAD = 0.125
ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2}
NO_INPUTS_PER_LAYER = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
SLIDING = ["sliding_attention", "full_attention"]
SETTINGS: dict[str, dict[str, Any]] = {
    "chameleon": {"vocabulary_map": {"<image>": 5, "IMGIMGAZ": 6, "IMGIMGBZ": 7}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": ROTARY}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_ocr2_text": EXPERTS | {"mlp_layer_types": ["dense", "sparse"]},
    "deepseek_v2": EXPERTS,
    "diffusion_gemma_text": {
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 64,
        "global_head_dim": 32,
    },
    "dots1": EXPERTS | {"n_shared_experts": 1},
    "dots3_note_text": {
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 64,
        "swa_kv_lora_rank": 64,
        "swa_head_dim": 64,
        "swa_qk_nope_head_dim": 32,
        "swa_v_head_dim": 32,
    },
    "dots3_note_vision_encoder": {"mlp_layer_types": ["dense", "sparse"]},
    "gemma3n_text": {
        "num_kv_shared_layers": 2,
        "layer_types": SLIDING * 2,
        "intermediate_size": 256,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
    },
    "gemma4_assistant": {"text_config": NO_INPUTS_PER_LAYER},
    "granite4_vision": {
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[0, 0]],
        "spatial_target_layers": [0, 1],
    },
    "hunyuan_vl_text": {"rope_parameters": ROTARY},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "muse_spark_audio": {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1]},
    "molmo2_adapter": {"vision_feature_layer": [-1, -2]},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "nemotron": {"num_key_value_heads": 2},
    "paddleocr_vl_text": {"rope_parameters": ROTARY | {"mrope_section": [5, 5, 6]}},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 32,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
        "ngram_vocab_size_base": 64,
        "split_ngram_parts": 1,
    },
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds_dim": [64, 64],
        "axial_pos_shape": [16, 32],
    },
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["mamba", "mamba", "hybrid"] * 2, "num_hidden_layers": 6},
    "zamba2": {
        "layer_types": ["mamba", "hybrid"] * 3,
        "hybrid_layer_ids": [1, 3, 5],
        "num_mem_blocks": 2,
        "num_hidden_layers": 6,
    },
    "step3p5": {"sliding_window": 512, "layer_types": SLIDING * 2},
}
"""Where a type's own defaults make no model, or leave out what is peculiar to it."""


def identifiers() -> dict[str, str]:
    """Model types, with the auto class that makes each."""
    from transformers.models.auto import modeling_auto as auto

    image = dict.fromkeys(
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, "AutoModelForImageTextToText"
    )
    return image | dict.fromkeys(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "AutoModelForCausalLM")


def shrunk(kind: type[Any], given: dict[str, Any] | None = None, depth: int = 0) -> Any:
    """A config of class `kind` with small sizes, and each kind of layer at least once.

    `given` are settings that the rules leave alone, those of a config inside as a dict.
    """
    given = SETTINGS.get(kind.model_type, {}) | (given or {})
    parts = getattr(kind, "sub_configs", {})
    full = kind(**{name: given[name] for name in parts if name in given})
    values = full.to_dict()
    small = {name: fixed for name, value in values.items() if (fixed := sized(name, value))}
    heads = [values[name] for name in HEADS if isinstance(values.get(name), int)]
    small |= {n: SIZE_OF["num_attention_heads"] for n in KV_HEADS if values.get(n) in heads}
    if "head_dim" in kind.__dataclass_fields__:
        small["head_dim"] = SIZE_OF["head_dim"]
    else:  # it follows from others
        small.pop("head_dim", None)
    small |= layers_of(full, values, small, given)
    inside = {name: getattr(full, name, None) for name in parts}
    inside = {name: config for name, config in inside.items() if config is not None and depth < 3}
    small |= {name: value for name, value in given.items() if name not in inside}
    if "mrope_section" in getattr(kind, "ignore_keys_at_rope_validation", ()):
        small["rope_parameters"] = with_sections(small.get("rope_parameters", full.rope_parameters))
    for name, config in inside.items():
        small[name] = shrunk(type(config), given.get(name), depth + 1)
    return made(kind, small)


def sized(name: str, value: Any) -> Any:
    """A small value for a key of a config; None where the key stays as it is."""
    token = name.endswith("_token_id")
    if token and isinstance(value, list):
        return [v if v < VOCABULARY else 1 for v in value]
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return None
    if token:
        return VOCABULARY - 1 - len(name) % 32 if value >= VOCABULARY else None
    return SIZE_OF.get(name) or SCALES.get(name)


def with_sections(rotary: dict[str, Any]) -> dict[str, Any]:
    """Settings of a multimodal rotary embedding, its three sections for heads of 32."""
    if "full_attention" in rotary:
        return {kind: with_sections(each) for kind, each in rotary.items()}
    half = int(SIZE_OF["head_dim"] // 2 * rotary.get("partial_rotary_factor", 1.0))
    return rotary | {"mrope_section": [half // 3, half // 3, half - 2 * (half // 3)]}


def layers_of(
    full: Any, values: dict[str, Any], small: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """As few layers as show every kind that the config has, or as many as are given."""
    for key in ("layer_types", "layers_block_type"):
        types = given.get(key) or getattr(full, key, None)
        if not isinstance(types, list | tuple) or not types:
            continue
        count = next(n for n in range(1, len(types) + 1) if set(types[:n]) == set(types))
        count = len(types) if key in given else min(max(2, count), MOST_LAYERS)
        found: dict[str, Any] = {name: count for name in LAYERS if name in small}
        return found | ({key: list(types[:count])} if key in values else {})
    return {}


def made(kind: type[Any], values: dict[str, Any]) -> Any:
    """A config of `values`; those that its own checks refuse are left out one by one."""
    tried = dict(values)
    for _ in range(12):
        try:
            return kind(**tried)
        except Exception as error:
            named = [n for n, v in tried.items() if n in str(error) and isinstance(v, int)]
            if not named:
                raise
            tried.pop(named[0])
    raise ValueError("no small config")


def make(identifier: str, auto_name: str, folder: Path) -> Any:
    """Save a tiny model with random weights; its class's name.

    It is in bf16, or in fp32 if transformers' code of the type does not run in bf16. Logits have a
    standard deviation of about an eighth, so that a few tokens which a rounded router sends to
    other experts move the KL little; logits that have nothing to do with each other are 0.016 nats
    apart.
    """
    import torch
    import transformers

    from tests.conftest import byte_tokenizer

    auto = getattr(transformers, auto_name)
    kind = transformers.CONFIG_MAPPING[identifier]
    config = shrunk(kind)
    torch.manual_seed(0)
    model = auto.from_config(config)
    generator = torch.Generator().manual_seed(0)
    head = model.get_output_embeddings()
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() > 1 and "conv" not in name:
                noise = torch.randn(weight.shape, generator=generator)
                size = HEAD if head is not None and weight is head.weight else 1.0
                weight.copy_(noise * size * weight.shape[-1] ** -0.5)
    model.to(torch.bfloat16).eval()
    try:
        with torch.no_grad():
            model(input_ids=torch.arange(64)[None] + 2, use_cache=False)
    except Exception as error:  # noqa: BLE001 - other faults are found later
        if re.search("same dtype|scalar type", str(error)):
            model.float()
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return type(model).__name__
