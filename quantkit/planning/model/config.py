"""The architecture that a Hugging Face config.json describes; nothing in it is believed unchecked.

Layer kinds come from `layer_types`, else from the pattern of the family, else from the window that
all layers share. head_dim comes from the config where it is there: in Qwen3, Gemma and Mistral-Nemo
it is not hidden_size / heads.
"""

import re
from collections.abc import Mapping
from typing import Any

from quantkit.core.errors import InputError, RefusedError
from quantkit.planning.model.architecture import (
    Architecture,
    Attention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    Recurrent,
)
from quantkit.planning.model.families import (
    LARGEST,
    MOST_LAYERS,
    Family,
    Fields,
    find,
    known,
    recurrent,
    refused_as,
)

MOST_EXPERTS = 1 << 20
"""Of all layers together: far above any model, and few enough to list."""

WRITTEN = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"),
    *("intermediate_size", "num_experts", "moe_intermediate_size", "kv_lora_rank"),
)
"""Sizes that transformers writes into every config, though its classes have defaults for them; in
one that lies in another (`text_config`) it leaves out what is as in the class."""
LLAMA_LIKE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
FULL = ("full_attention", "attention", "indexed_attention")
_IDENTIFIER = re.compile(r"[A-Za-z0-9_.+-]{1,60}")
RECURRENT = ("linear_attention", "mamba", "mamba2")


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """The decoder that a config.json's object describes; of a multimodal one the text part.

    Raises:
        InputError: a field is missing, of the wrong kind, or at odds with another.
        RefusedError: a model_type or a layer type whose memory is not known.
    """
    return _architecture(config, read_fields(config))


def read_as_llama(config: Mapping[str, Any]) -> Architecture:
    """The decoder that a config describes in the vocabulary of Llama, whatever its model_type.

    Raises:
        InputError: a field is missing, of the wrong kind, or at odds with another.
        RefusedError: it is no decoder, or a field of a Llama is missing.
    """
    values, model_type = _text_values(config), model_type_of(config)
    fields = Fields(values, Family(model_type))
    absent = [name for name in LLAMA_LIKE if fields.raw(name) is None]
    if absent:
        raise RefusedError(
            f"plan does not know model_type {model_type!r:.60}",
            why=f"it cannot be read as a Llama either: it has no {', '.join(absent)}",
            hint=f"one of {', '.join(known())}, or a decoder of transformers",
        )
    return _architecture(config, fields)


def _architecture(config: Mapping[str, Any], fields: Fields) -> Architecture:
    hidden = fields.size("hidden_size")
    layers = fields.size("num_hidden_layers", most=MOST_LAYERS)
    mixers = _mixers(fields, layers)
    blocks = tuple(map(Layer, mixers, _feed_forwards(fields, layers)))
    experts = sum(b.feed_forward.count for b in blocks if isinstance(b.feed_forward, Experts))
    if experts > MOST_EXPERTS:
        raise InputError(f"config.json: {experts} experts in {layers} layers")
    return Architecture(
        model_type=fields.config["model_type"],
        hidden=hidden,
        vocabulary=fields.size("vocab_size"),
        tied=fields.flag("tie_word_embeddings"),
        layers=blocks,
        context=fields.maybe("max_position_embeddings", least=1),
        dtype=stated_dtype(config) or "F32",
    )


def read_fields(config: Mapping[str, Any]) -> Fields:
    """The fields of the text model in a config.json, with what its family fills in.

    Raises:
        InputError: the config has no model_type.
        RefusedError: no decoder, or a model_type that families.toml does not know.
    """
    model_type = model_type_of(config)
    family = find(model_type)
    if family is None:
        raise RefusedError(
            f"plan does not know model_type {model_type!r:.60}",
            hint=f"one of {', '.join(known())}",
        )
    fields = Fields(_text_values(config), family)
    absent = [name for name in WRITTEN if fields.left_out(name)]
    if absent and not isinstance(config.get("text_config"), Mapping):
        raise InputError(
            f"config.json: {absent[0]} is missing",
            why=f"the default of {family.name} is the size of another model",
            hint="the whole config.json of the model",
        )
    return fields


def model_type_of(config: Mapping[str, Any]) -> str:
    """The model_type of the text model in a config.json.

    Raises:
        InputError: the config has none.
        RefusedError: it is that of no decoder.
    """
    model_type = _text_values(config)["model_type"]
    if not is_identifier(model_type):
        found = "missing" if model_type is None else f"{model_type!r:.60}"
        raise InputError(
            f"config.json: model_type is {found}",
            hint="the config.json of a transformers checkpoint",
        )
    _require_decoder(config, model_type)
    return str(model_type)


def unread_fields(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Fields of a known family's config that nothing here reads, and that may tell of tensors."""
    return read_fields(config).unread()


def _text_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the text model, with what holds for it of the whole."""
    text = config.get("text_config")
    values = dict(text) if isinstance(text, Mapping) else dict(config)
    values.setdefault("model_type", config.get("model_type"))
    if "tie_word_embeddings" in config:
        values["tie_word_embeddings"] = config["tie_word_embeddings"]
    return values


def _require_decoder(config: Mapping[str, Any], model_type: str) -> None:
    kind = refused_as(model_type)
    if kind is None and config.get("is_encoder_decoder") is True:
        kind = "encoder-decoder"
    if kind is not None:
        raise RefusedError(
            f"model_type {model_type!r:.60} is an {kind}",
            why="quantkit plans and quantizes decoders only",
            hint="a decoder, such as a llama, qwen3 or gemma3",
        )


def is_identifier(value: object) -> bool:
    """Whether a value from a config can be printed as a name: short, and of one word."""
    return isinstance(value, str) and _IDENTIFIER.fullmatch(value) is not None


def stated_dtype(config: Mapping[str, Any]) -> str | None:
    """The dtype that a config names, of the whole or else of a part; None where it names none.

    Raises:
        InputError: it names none that is known.
    """
    inner = (config.get(key) for key in ("text_config", "vision_config"))
    for part in (config, *inner):
        if isinstance(part, Mapping) and (name := part.get("dtype") or part.get("torch_dtype")):
            if isinstance(name, str) and name in DTYPES:
                return DTYPES[name]
            raise InputError(
                f"config.json: dtype is {name!r:.60}", why=f"known: {', '.join(DTYPES)}"
            )
    return None


def _mixers(fields: Fields, layers: int) -> list[Mixer]:
    kinds = _layer_types(fields, layers)
    made = {kind: _mixer(fields, kind) for kind in dict.fromkeys(kinds)}
    own = layers - (fields.maybe("num_kv_shared_layers", most=layers) or 0)
    return [
        made[kind] if i < own else _mixer(fields, kind, shares_cache=True)
        for i, kind in enumerate(kinds)
    ]


def _layer_types(fields: Fields, layers: int) -> list[str]:
    """One kind for each layer, as transformers 5.23's configs derive it."""
    listed = fields.many("layer_types", str, length=layers)
    if listed is not None:
        return listed
    pattern = dict(fields.family.pattern)
    stated = fields.raw("no_rope_layers") != []  # in transformers an empty list is none
    rotary = fields.many("no_rope_layers", int, length=layers) if stated else None
    if rotary and pattern.get("others") == "chunked_attention":
        # Llama 4: a layer without rotary positions sees everything
        return ["chunked_attention" if rope else "full_attention" for rope in rotary]
    for name in ("sliding_window_pattern", "full_attention_interval"):
        if not pattern and fields.raw(name) is not None:
            others = "sliding_attention" if name.startswith("sliding") else "linear_attention"
            pattern = {"period": name, "others": others}
    if pattern:
        return _periodic(fields, pattern, layers)
    window = None if fields.raw("use_sliding_window") is False else fields.maybe("sliding_window")
    if window is None:
        return ["full_attention"] * layers
    first = fields.maybe("max_window_layers") or 0
    return ["full_attention" if i < first else "sliding_attention" for i in range(layers)]


def _periodic(fields: Fields, pattern: Mapping[str, Any], layers: int) -> list[str]:
    """Full attention in one layer of each period, the last unless an offset says which."""
    others: str = pattern["others"]
    if "default" not in pattern and "period" not in pattern:
        return [others] * layers
    period = fields.maybe(pattern.get("period", ""), least=1) or pattern.get("default", 1)
    offset = fields.maybe(pattern.get("offset", ""))
    offset = period - 1 if offset is None else offset
    return ["full_attention" if i % period == offset else others for i in range(layers)]


def _mixer(fields: Fields, kind: str, *, shares_cache: bool = False) -> Mixer:
    if kind in RECURRENT and fields.family.recurrent:
        rule = recurrent(fields.family.recurrent)
        sizes = {key: fields.evaluate(rule[key]) for key in ("convolution", "columns", "state")}
        return Recurrent(fields.family.recurrent, **sizes)
    if kind in FULL and fields.raw("kv_lora_rank") is not None:
        return _latent(fields)
    windows = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
    if kind not in FULL and kind not in windows:
        raise RefusedError(
            f"plan does not know {fields.family.name} layers of type {kind!r:.60}",
            why="the config does not give the size of their cache",
        )
    heads = fields.size("num_attention_heads")
    kv_heads = _kv_heads(fields, heads)
    head_dim = fields.maybe("head_dim", least=1)
    if head_dim is None:
        hidden = fields.size("hidden_size")
        if hidden % heads:
            raise InputError(
                f"config.json: hidden_size {hidden} is not a multiple of "
                f"num_attention_heads {heads}",
                why="head_dim is missing, and would be their ratio",
            )
        head_dim = hidden // heads
    window = fields.size(windows[kind]) if kind in windows else None
    return Attention(heads, kv_heads, head_dim, window, shares_cache)


def _kv_heads(fields: Fields, heads: int) -> int:
    if fields.flag("multi_query") and not fields.flag("new_decoder_architecture"):
        return 1  # Falcon-7B; its num_kv_heads is not looked at
    kv_heads = fields.maybe("num_key_value_heads", least=1) or heads
    if heads % kv_heads:
        raise InputError(
            f"config.json: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    return kv_heads


def _latent(fields: Fields) -> LatentAttention:
    return LatentAttention(
        heads=fields.size("num_attention_heads"),
        query_rank=fields.maybe("q_lora_rank", least=1),
        kv_rank=fields.size("kv_lora_rank"),
        rope_dim=fields.size("qk_rope_head_dim"),
        nope_dim=fields.size("qk_nope_head_dim"),
        value_dim=fields.size("v_head_dim"),
        index_dim=fields.maybe("index_head_dim") or 0,
    )


def _feed_forwards(fields: Fields, layers: int) -> list[FeedForward | Experts | None]:
    """What follows the mixer in each layer."""
    if fields.flag("mixer_only"):
        return [None] * layers
    sparse = [False] * layers
    if (fields.maybe("num_experts") or 0) > 0:
        sparse = _sparse_layers(fields, layers)
    experts = _experts(fields) if any(sparse) else None
    dense = [] if all(sparse) else _dense(fields, layers)
    return [experts if sparse[i] else dense[i] for i in range(layers)]


def _experts(fields: Fields) -> Experts:
    count = fields.size("num_experts")
    return Experts(
        count=count,
        active=fields.size("num_experts_per_tok", most=count),
        width=fields.maybe("moe_intermediate_size") or fields.size("intermediate_size"),
        shared_width=_shared_width(fields),
        gated=fields.flag("gated"),
    )


def _dense(fields: Fields, layers: int) -> list[FeedForward]:
    """A feed-forward for each layer, whether it has one or experts."""
    gated = fields.flag("gated")
    if not isinstance(fields.raw("intermediate_size"), list):
        return [FeedForward(fields.evaluate(fields.family.dense_width), gated)] * layers
    # Gemma 3n may give one for each layer
    widths = fields.many("intermediate_size", int, length=layers) or []
    if not 1 <= min(widths) <= max(widths) <= LARGEST:
        raise InputError(f"config.json: a width of intermediate_size is not from 1 to {LARGEST}")
    return [FeedForward(width, gated) for width in widths]


def _sparse_layers(fields: Fields, layers: int) -> list[bool]:
    """Which layers of a model with experts have them, by whichever of five ways says so."""
    kinds = fields.many("mlp_layer_types", str, length=layers)
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    chosen = fields.many("moe_layers", int, most=layers)
    if chosen is not None:
        listed = set(chosen)
        return [layer in listed for layer in range(layers)]
    dense = set(fields.many("mlp_only_layers", int, most=layers) or ())
    dense |= set(range(min(layers, fields.maybe("first_k_dense_replace") or 0)))
    for name in ("decoder_sparse_step", "interleave_moe_layer_step", "expert_layer_period"):
        step = fields.maybe(name, least=1)
        if step is not None:
            offset = fields.maybe("expert_layer_offset")
            rest = step - 1 if offset is None else offset
            return [layer not in dense and layer % step == rest for layer in range(layers)]
    return [layer not in dense for layer in range(layers)]


def _shared_width(fields: Fields) -> int:
    if fields.family.shared_width:
        return fields.evaluate(fields.family.shared_width)
    shared = fields.maybe("n_shared_experts") or 0
    if shared:
        return shared * fields.size("moe_intermediate_size")
    return fields.maybe("shared_expert_intermediate_size") or 0
