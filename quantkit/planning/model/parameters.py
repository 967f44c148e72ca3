"""Every tensor of a model from its config alone, under the names that Llama's files have.

Checkpoints that store fused or stacked tensors (Phi-3's qkv_proj, gpt-oss's experts) are listed as
the linears they consist of: the bytes are the same, and so are the ranks' shares.
"""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from quantkit.planning.model.architecture import (
    Architecture,
    Attention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Recurrent,
)
from quantkit.planning.model.config import read_fields
from quantkit.planning.model.families import Fields, recurrent
from quantkit.planning.model.inventory import Inventory, Part, PlannedTensor, Split
from quantkit.planning.model.towers import towers

NORMS = {
    1: ("input_layernorm",),
    2: ("input_layernorm", "post_attention_layernorm"),
    4: (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
}

Tensors = Iterator[PlannedTensor]


def inventory_from_config(config: Mapping[str, Any], architecture: Architecture) -> Inventory:
    """Every tensor of the model that `architecture` was read from `config` for.

    All have the config's dtype, as if no linear were quantized, but for routing corrections, in
    fp32. A mixer's tensors, recurrent ones too, are of part `attention`, an expert that every token
    goes through of part `mlp`. A vision tower is there where the config describes all of it; extra
    prediction layers (MTP) are not listed.
    """
    fields = read_fields(config)
    kinds = {
        layer: tuple(_block(fields, architecture.hidden, layer))
        for layer in dict.fromkeys(architecture.layers)
    }
    dtype = architecture.dtype
    tensors = [_placed(tensor, dtype) for tensor in _around(fields, architecture)]
    for index, layer in enumerate(architecture.layers):
        tensors += [_placed(tensor, dtype, index) for tensor in kinds[layer]]
    beside, uncounted = towers(config, architecture.hidden, dtype)
    return Inventory((*tensors, *beside), "config.json", uncounted)


def parameter_count(inventory: Inventory) -> int:
    """Parameters of a model; buffers that files hold do not count."""
    return sum(row.alike * prod(row.shape) for row in inventory.rows if not row.buffer)


def _placed(tensor: PlannedTensor, dtype: str, layer: int | None = None) -> PlannedTensor:
    """The same tensor under its full name, with a dtype where it has none of its own."""
    prefix = "" if layer is None else f"model.layers.{layer}."
    return tensor._replace(
        name=prefix + tensor.name,
        dtype=tensor.dtype or dtype,
        layer=layer,
        linear=prefix + tensor.linear if tensor.linear else None,
        fused=tuple(prefix + name for name in tensor.fused),
    )


def _around(fields: Fields, architecture: Architecture) -> Tensors:
    """Embedding, final norm, head, and what the family has beside them."""
    shape = (architecture.vocabulary, architecture.hidden)
    yield PlannedTensor("model.embed_tokens.weight", shape, "", "embedding", split="vocabulary")
    for name, row in fields.shaped(fields.family.model):
        yield _listed(f"model.{name}", row, "other")
    yield from _norm(fields, "model.norm", architecture.hidden)
    if not architecture.tied:
        yield PlannedTensor(
            "lm_head.weight", shape, "", "head", split="vocabulary", linear="lm_head"
        )


def _block(fields: Fields, hidden: int, layer: Layer) -> Tensors:
    """A block's tensors, their names relative to it."""
    for name in NORMS[_norms(fields)]:
        yield from _norm(fields, name, hidden)
    match layer.mixer:
        case Attention():
            yield from _attention(fields, hidden, layer.mixer)
        case LatentAttention():
            yield from _latent(fields, hidden, layer.mixer)
        case Recurrent(kind):
            for name, row in fields.shaped(recurrent(kind)["tensors"]):
                yield _listed(f"mixer.{name}", row, "attention")
    match layer.feed_forward:
        case FeedForward(width, gated):
            bias = fields.flag("mlp_bias")
            yield from _mlp("mlp", (width, hidden), "mlp", gated=gated, bias=bias)
        case Experts():
            yield from _experts(fields, hidden, layer.feed_forward)
    for name, row in fields.shaped(fields.family.block):
        yield _listed(name, row, "other")


def _norms(fields: Fields) -> int:
    if fields.flag("parallel_attn"):  # Falcon: attention and MLP read the same input
        newer = fields.flag("new_decoder_architecture")
        return fields.maybe("num_ln_in_parallel_attn", most=2) or (2 if newer else 1)
    if fields.flag("single_norm"):
        return 1
    return fields.trait("norms")


def _norm(fields: Fields, name: str, width: int) -> Tensors:
    yield PlannedTensor(f"{name}.weight", (width,), "", "norm")
    if fields.flag("norm_bias"):
        yield PlannedTensor(f"{name}.bias", (width,), "", "norm")


def _attention(fields: Fields, hidden: int, mixer: Attention) -> Tensors:
    bias = fields.flag("qkv_bias")
    queries = mixer.heads * mixer.head_dim
    keys = 0 if mixer.shares_cache else mixer.kv_heads * mixer.head_dim
    outputs: dict[str, tuple[int, Split]] = {
        "q": (2 * queries if fields.flag("query_gate") else queries, "rows"),
        "k": (keys, "kv_rows"),
        "v": (keys, "kv_rows"),
    }
    fused = tuple(f"self_attn.{n}_proj" for n, (width, _) in outputs.items() if width)
    for name in fused:
        width, split = outputs[name[len("self_attn.")]]
        yield from _linear(name, (width, hidden), "attention", split, bias=bias, fused=fused)
    bias = fields.flag("output_bias")
    yield from _linear("self_attn.o_proj", (hidden, queries), "attention", "columns", bias=bias)
    for name, width in (("q_norm", queries), ("k_norm", keys)):
        if width and fields.flag("wide_norm"):
            yield PlannedTensor(f"self_attn.{name}.weight", (width,), "", "norm")
        elif width and fields.flag("head_norm"):
            yield PlannedTensor(f"self_attn.{name}.weight", (mixer.head_dim,), "", "norm")


def _latent(fields: Fields, hidden: int, mixer: LatentAttention) -> Tensors:
    """MLA: a rank has the projections to the latents whole, and its heads' part of the rest."""
    bias = fields.flag("qkv_bias")
    queries = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
    query, latent = "self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"
    fused = () if mixer.query_rank is None else (query, latent)
    if mixer.query_rank is None:
        yield from _linear("self_attn.q_proj", (queries, hidden), "attention", "rows")
    else:
        shape = (mixer.query_rank, hidden)
        yield from _linear(query, shape, "attention", "replicated", bias=bias, fused=fused)
        yield PlannedTensor("self_attn.q_a_layernorm.weight", (mixer.query_rank,), "", "norm")
        shape = (queries, mixer.query_rank)
        yield from _linear("self_attn.q_b_proj", shape, "attention", "rows")
    shape = (mixer.kv_rank + mixer.rope_dim, hidden)
    yield from _linear(latent, shape, "attention", "replicated", bias=bias, fused=fused)
    yield PlannedTensor("self_attn.kv_a_layernorm.weight", (mixer.kv_rank,), "", "norm")
    shape = (mixer.heads * (mixer.nope_dim + mixer.value_dim), mixer.kv_rank)
    yield from _linear("self_attn.kv_b_proj", shape, "attention", "rows")
    shape = (hidden, mixer.heads * mixer.value_dim)
    bias = fields.flag("output_bias")
    yield from _linear("self_attn.o_proj", shape, "attention", "columns", bias=bias)


def _experts(fields: Fields, hidden: int, experts: Experts) -> Tensors:
    yield PlannedTensor("mlp.gate.weight", (experts.count, hidden), "", "router")
    if fields.flag("router_bias"):
        yield PlannedTensor("mlp.gate.bias", (experts.count,), "", "router")
    if fields.flag("routing_buffer"):
        name = "mlp.gate.e_score_correction_bias"
        yield PlannedTensor(name, (experts.count,), "F32", "router", buffer=True)
    gated, bias = experts.gated, fields.flag("expert_bias")
    shape = (experts.width, hidden)
    for tensor in _mlp("mlp.experts.0", shape, "experts", gated=gated, bias=bias):
        yield tensor._replace(alike=experts.count)
    if experts.shared_width:
        shape = (experts.shared_width, hidden)
        yield from _mlp("mlp.shared_expert", shape, "mlp", gated=gated)
        if fields.flag("shared_gate"):
            yield PlannedTensor("mlp.shared_expert_gate.weight", (1, hidden), "", "router")


def _mlp(
    name: str, shape: tuple[int, int], part: Part, *, gated: bool, bias: bool = False
) -> Tensors:
    """An MLP's linears; `shape` is (width, hidden)."""
    fused = tuple(f"{name}.{n}_proj" for n in (("gate", "up") if gated else ("up",)))
    for linear in fused:
        yield from _linear(linear, shape, part, "rows", bias=bias, fused=fused)
    yield from _linear(f"{name}.down_proj", shape[::-1], part, "columns", bias=bias)


def _linear(
    name: str,
    shape: tuple[int, ...],
    part: Part,
    split: Split,
    *,
    bias: bool = False,
    fused: tuple[str, ...] = (),
) -> Tensors:
    fused = fused if len(fused) > 1 else ()
    yield PlannedTensor(f"{name}.weight", shape, "", part, None, split, name, fused)
    if bias:
        whole = "replicated" if split == "columns" else split
        yield PlannedTensor(f"{name}.bias", shape[:1], "", part, None, whole)


def _listed(name: str, row: Mapping[str, Any], part: Part) -> PlannedTensor:
    """A tensor that families.toml lists; matrices of a mixer or an MLP are linears if called."""
    part, shape = row.get("part", part), row["shape"]
    matrix = part in ("attention", "mlp") and len(shape) == 2 and name.endswith(".weight")
    is_linear = matrix and not row.get("read")
    linear = name.removesuffix(".weight") if is_linear else None
    return PlannedTensor(name, shape, "", part, None, row.get("split", "replicated"), linear)
