"""The planned KV cache against the blocks that vLLM's CPU build makes of the same memory."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from quantkit.planning.model.config import read_architecture
from quantkit.planning.serve.paging import concurrency, paged_cache

SHAPE = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
LATENT = {
    "num_key_value_heads": 4,
    "head_dim": None,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
}
HYBRID = {
    "head_dim": None,
    "num_experts": 4,
    "attn_layer_period": 4,
    "attn_layer_offset": 2,
    "mamba_dt_rank": 8,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SHAPE,
    "gemma3_text": SHAPE | {"sliding_window": 48},
    "deepseek_v2": SHAPE | LATENT,
    "jamba": SHAPE | HYBRID,
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "jamba": "JambaForCausalLM",
}
CONTEXT, BATCH = 256, 64


@pytest.fixture(scope="module")
def pages(
    engine_python: Callable[[str], str],
    run_script: Callable[[str, str, str], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[str, Any]]:
    engine_python("vllm")  # skips before any work
    folder = tmp_path_factory.mktemp("pages")
    for model_type, values in MODELS.items():
        config = CONFIG_MAPPING[model_type](**values, architectures=[ARCHITECTURES[model_type]])
        config.save_pretrained(folder / model_type)
    job = {
        "folders": {name: str(folder / name) for name in MODELS},
        "context": CONTEXT,
        "batch": BATCH,
    }
    (folder / "job.json").write_text(json.dumps(job))
    run_script("vllm", "page_cache.py", str(folder / "job.json"))
    found: dict[str, dict[str, Any]] = json.loads((folder / "pages.json").read_text())
    return {
        name: found[name] | {"config": json.loads((folder / name / "config.json").read_text())}
        for name in MODELS
    }


@pytest.mark.parametrize("model", MODELS)
def test_as_many_blocks_as_vllm_makes(model: str, pages: dict[str, dict[str, Any]]) -> None:
    page = pages[model]
    architecture = read_architecture(page["config"])
    cache = paged_cache(architecture, block_tokens=page["block_tokens"])
    assert page["available"] // cache.block_bytes == page["blocks"]
    planned = concurrency(cache, page["available"], CONTEXT, page["in_flight"])
    assert planned == pytest.approx(page["concurrency"])
