"""What a config.json says of a quantization, and the config of the dense model without it."""

from collections.abc import Mapping
from typing import Any

BLOCKS = ("quantization_config", "compression_config")
"""Where a config says it; the second one is compressed-tensors' old name."""
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def quantization_block(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The block that says how a checkpoint is quantized; None where there is none.

    The config's own, else its `text_config`'s: transformers 5.23 and vLLM 0.33 source.
    """
    for part in (config, config.get("text_config")):
        for key in BLOCKS:
            block = part.get(key) if isinstance(part, Mapping) else None
            if isinstance(block, Mapping):
                return block
    return None


def with_modelopt(config: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, Any]:
    """A config without a block, with the one that ModelOpt writes into a file `beside` it."""
    stated = beside.get("quantization")
    if not isinstance(stated, Mapping):
        return dict(config)
    return {**config, "quantization_config": {**stated, "quant_method": "modelopt"}}


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of the same model in 16 bits: no part of it states a quantization."""
    gone = (*BLOCKS, "expert_dtype")  # DeepSeek-V4's, of experts in 4 bits
    return {
        key: plain_config(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in gone
    }


def dense_dtype(config: Mapping[str, Any]) -> str:
    """The dtype of the dense weights, as safetensors names it; bf16 where the config has none."""
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping):
            stated = part.get("dtype") or part.get("torch_dtype")
            if isinstance(stated, str) and stated in DTYPES:
                return DTYPES[stated]
    return "BF16"
