"""The inventory of a checkpoint, from the headers of its files: what each tensor is, by its name.

Names are those of Llama and its many kin, of GPT-2, GPT-NeoX, Falcon, BLOOM, Mixtral, DeepSeek and
Mamba. A tensor of no known name is of part "other" and held whole by every rank.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from quantkit.checkpoint.stored import TensorInfo
from quantkit.planning.model.architecture import Architecture
from quantkit.planning.model.inventory import FLOATS, Inventory, Part, PlannedTensor, Split

LINEAR_PARTS = ("attention", "mlp", "experts", "head")
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)
"""Linears that read one input and that engines make one of (vLLM's packed_modules_mapping)."""
NO_LINEARS = ("conv1d", "dt_proj")
"""Modules of Mamba layers with a matrix: a convolution, and a linear that is read, never called."""

# The first that is found in a module's name decides; `*` stands for any number.
RULES: tuple[tuple[str, Part, Split], ...] = (
    (r"mixer\.norm$", "norm", "rows"),
    (r"norm[^.]*$|(^|\.)ln_[^.]*$", "norm", "replicated"),
    (r"(embed_tokens(_per_layer)?|wte|word_embeddings|tok_embeddings|embed_in|backbone\.embeddings)$",
     "embedding", "vocabulary"),
    (r"(^|\.)altup(_|\.)", "altup", "replicated"),
    (r"(^|\.)per_layer_\w+$", "per-layer", "replicated"),
    (r"(wpe|embed_positions|position_embeddings)$", "embedding", "replicated"),
    (r"(^|\.)(lm_head|embed_out)$|^(language_model\.)?output$", "head", "vocabulary"),
    (r"(^|\.)(gate|router|shared_expert_gate)(\.|$)", "router", "replicated"),
    (r"\.experts(\.\w*|\.mlp\.\w+)?$|block_sparse_moe\.(in|out)put_linear$", "experts", "experts"),
    (r"\.experts\..*(gate_proj|up_proj|w1|w3)$", "experts", "rows"),
    (r"\.experts\..*(down_proj|w2)$", "experts", "columns"),
    (r"\.(q_a_proj|kv_a_proj_with_mqa|indexer\.\w+)$", "attention", "replicated"),
    (r"\.(k_proj|v_proj)$", "attention", "kv_rows"),
    (r"\.(q_proj|q_b_proj|kv_b_proj|qkv_proj|query_key_value|c_attn|Wqkv)$", "attention", "rows"),
    (r"(attn|attention|mixer|mamba)\.(o_proj|out_proj|x_proj|dense|c_proj|wo)$",
     "attention", "columns"),
    (r"\.(gate_proj|up_proj|gate_up_proj|fc1|fc_in|c_fc|dense_h_to_4h|w1|w3)$", "mlp", "rows"),
    (r"(shared_mlp\.input_linear|laurel\.linear_left)$", "mlp", "rows"),
    (r"\.(down_proj|fc2|fc_out|c_proj|dense_4h_to_h|w2)$", "mlp", "columns"),
    (r"(shared_mlp\.output_linear|laurel\.linear_right)$", "mlp", "columns"),
    (r"attn|attention|mixer|mamba", "attention", "rows"),
)  # fmt: skip
_RULES = [(re.compile(pattern), part, split) for pattern, part, split in RULES]
_NUMBER = re.compile(r"(?<=\.)(\d+)(?=\.)")
_LAYER = re.compile(r"^[^*]*(^|\.)(layers|h|blocks)\.\*\.")
_TAIL = re.compile(
    r"(\.(weight|bias|qweight|qzeros|scales|g_idx|input_scale|SCB|e_score_correction_bias|weight_\w+)|_(blocks|scales|bias))"
    r"(\..*)?$"
)
_EXTRA = re.compile(r"(^|\.)mtp(_|\.)")
_TOWER = re.compile(r"(^|\.)((embed_)?(vision|audio)|visual|multi_modal|mm_)")


class _Role(NamedTuple):
    """What tensors are whose names differ in numbers only."""

    part: Part = "other"
    split: Split = "replicated"
    linear: bool = False
    fused: tuple[str, ...] = ()
    in_block: bool = False
    extra: bool = False
    buffer: bool = False


def inventory_from_headers(
    tensors: Mapping[str, TensorInfo], architecture: Architecture
) -> Inventory:
    """Every tensor of the files; those of blocks beyond the config's (MTP) are of part "other".

    They have a layer beyond the last, which sets them apart.
    """
    depth = len(architecture.layers)
    found = []
    for name, info in tensors.items():
        words = _NUMBER.split(name)
        role = _role("*".join(words[::2]))
        layer = depth if role.extra else int(words[1]) if role.in_block else None
        part = "other" if layer is not None and layer >= depth else role.part
        module: str | None = None
        fused: tuple[str, ...] = ()
        if role.linear and len(info.shape) == 2 and info.dtype in FLOATS:
            module = name[: -len(".weight")]
            fused = _present(module[: module.rfind(".") + 1], role.fused, tensors)
        found.append(
            PlannedTensor(
                name, info.shape, info.dtype, part, layer, role.split, module, fused, role.buffer
            )
        )
    return Inventory(tuple(found), "safetensors headers")


def _present(
    prefix: str, names: tuple[str, ...], tensors: Mapping[str, TensorInfo]
) -> tuple[str, ...]:
    weights = {prefix + name: tensors.get(f"{prefix}{name}.weight") for name in names}
    there = tuple(name for name, info in weights.items() if info and info.dtype in FLOATS)
    return there if len(there) > 1 else ()


@cache
def _role(name: str) -> _Role:
    """What a tensor is, by its name with `*` for numbers."""
    tail = _TAIL.search(name)
    module = name[: tail.start()] if tail else name
    in_block = _LAYER.search(name) is not None
    if _EXTRA.search(module):
        return _Role(extra=True)
    if _TOWER.search(module):
        return _Role("tower")
    found = next((rule[1:] for rule in _RULES if rule[0].search(module)), None)
    if found is None:
        return _Role(in_block=in_block)
    part, split = found
    own = module.rpartition(".")[2]
    return _Role(
        part,
        _split(split, name, module),
        name == f"{module}.weight"
        and part in LINEAR_PARTS
        and not any(word in own for word in NO_LINEARS),
        next((group for group in FUSED if own in group), ()),
        in_block,
        buffer=name.endswith("e_score_correction_bias"),
    )


def _split(split: Split, name: str, module: str) -> Split:
    """The split of a weight's companions: by its outputs, or a copy for each rank."""
    tail = name[len(module) :].lstrip(".")
    once = ("weight_shape", "input_scale", "quant_map", "nested_quant_map", "weight_global_scale")
    if tail.rpartition(".")[2] in once or "quant_state" in tail:
        return "replicated"
    if tail == "g_idx":  # one entry for each input
        return "columns" if split == "columns" else "replicated"
    if tail == "bias" and split == "columns":
        return "replicated"
    return split
