"""The inventory of a checkpoint, from the headers of its files: what each tensor is, by its name.

Names are those of Llama and its many kin, of GPT-2, GPT-NeoX, Falcon, BLOOM, Mixtral, DeepSeek and
Mamba. A tensor of no known name is of part "other" and held whole by every rank.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from quantkit.checkpoint.header import TensorInfo
from quantkit.planning.architecture import Architecture
from quantkit.planning.inventory import Inventory, Part, PlannedTensor, Split

LINEAR_PARTS = ("attention", "mlp", "experts", "head")
FLOATS = ("F64", "F32", "F16", "BF16")
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)
"""Linears that read one input and that engines make one of (vLLM's packed_modules_mapping)."""

# The first that is found in a module's name decides; `*` stands for any number.
RULES: tuple[tuple[str, Part, Split], ...] = (
    (r"norm|(^|\.)ln_|layernorm", "norm", "replicated"),
    (r"(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|backbone\.embeddings)$",
     "embedding", "vocabulary"),
    (r"(wpe|embed_positions|position_embeddings)$", "embedding", "replicated"),
    (r"^(lm_head|embed_out|output)$", "head", "vocabulary"),
    (r"(^|\.)(gate|router|shared_expert_gate)(\.layer)?$", "router", "replicated"),
    (r"\.experts(\.\w*)?$", "experts", "experts"),
    (r"\.experts\..*(gate_proj|up_proj|w1|w3)$", "experts", "rows"),
    (r"\.experts\..*(down_proj|w2)$", "experts", "columns"),
    (r"\.(q_a_proj|kv_a_proj_with_mqa|indexer\.\w+)$", "attention", "replicated"),
    (r"\.(k_proj|v_proj)$", "attention", "kv_rows"),
    (r"\.(q_proj|q_b_proj|kv_b_proj|qkv_proj|query_key_value|c_attn|Wqkv)$", "attention", "rows"),
    (r"(attn|attention|mixer|mamba)\.(o_proj|out_proj|dense|c_proj)$", "attention", "columns"),
    (r"\.(gate_proj|up_proj|gate_up_proj|fc1|fc_in|c_fc|dense_h_to_4h|w1|w3)$", "mlp", "rows"),
    (r"\.(down_proj|fc2|fc_out|c_proj|dense_4h_to_h|w2)$", "mlp", "columns"),
    (r"attn|attention|mixer|mamba", "attention", "rows"),
)  # fmt: skip
_RULES = [(re.compile(pattern), part, split) for pattern, part, split in RULES]
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_TAIL = re.compile(
    r"(\.(weight|bias|qweight|qzeros|scales|g_idx|input_scale|SCB|e_score_correction_bias|weight_\w+)|_(blocks|scales|bias))"
    r"(\..*)?$"
)
_TOWER = re.compile(r"(^|\.)(vision|visual|audio|multi_modal|mm_)")


class _Role(NamedTuple):
    part: Part
    split: Split
    linear: bool
    fused: tuple[str, ...]


def inventory_from_headers(
    tensors: Mapping[str, TensorInfo], architecture: Architecture
) -> Inventory:
    """Every tensor of the files; those of blocks beyond the config's (MTP) are of part "other"."""
    depth = len(architecture.layers)
    found = []
    for name, info in tensors.items():
        numbered = _LAYER.search(name)
        layer = int(numbered[1]) if numbered else None
        part, split, linear, siblings = _role(_NUMBER.sub("*", name))
        if layer is not None and layer >= depth:
            part = "other"
        module, fused = None, ()
        if linear and len(info.shape) == 2 and info.dtype in FLOATS:
            module = name.removesuffix(".weight")
            parent = module[: module.rfind(".") + 1]
            fused = tuple(parent + own for own in siblings if f"{parent}{own}.weight" in tensors)
        fused = fused if len(fused) > 1 else ()
        found.append(
            PlannedTensor(
                name, info.shape, info.dtype, part, layer, split, module, fused,
                buffer=name.endswith("e_score_correction_bias"),
            )
        )
    return Inventory(tuple(found), "safetensors headers")


@cache
def _role(name: str) -> _Role:
    """What a tensor is, by its name with `*` for numbers."""
    tail = _TAIL.search(name)
    module = name[: tail.start()] if tail else name
    if _TOWER.search(module):
        return _Role("other", "replicated", linear=False, fused=())
    for pattern, part, split in _RULES:
        if pattern.search(module):
            break
    else:
        return _Role("other", "replicated", linear=False, fused=())
    own = module.rpartition(".")[2]
    siblings = next((group for group in FUSED if own in group), ())
    linear = name == f"{module}.weight" and part in LINEAR_PARTS and "conv1d" not in own
    return _Role(part, _split(split, name, module), linear, siblings)


def _split(split: Split, name: str, module: str) -> Split:
    """The split of a weight's companions: what is said of its outputs, or once for the whole."""
    tail = name[len(module) :].lstrip(".")
    once = ("weight_shape", "input_scale", "quant_map", "nested_quant_map", "weight_global_scale")
    if tail.rpartition(".")[2] in once or "quant_state" in tail:
        return "replicated"
    if tail == "g_idx":  # one entry for each input
        return "columns" if split == "columns" else "replicated"
    if tail == "bias" and split == "columns":
        return "replicated"
    return split
