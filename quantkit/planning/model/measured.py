"""A model that families.toml does not describe, as transformers' own class builds and runs it.

`quantkit.model.measured` has the shapes of its tensors and of its cache; here they become what
planning goes by. It takes seconds, and torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from quantkit.checkpoint.stored import TensorInfo
from quantkit.planning.model.architecture import (
    Architecture,
    Attention,
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    Recurrent,
    Stored,
)
from quantkit.planning.model.headers import inventory_from_headers
from quantkit.planning.model.inventory import Inventory, PlannedTensor

if TYPE_CHECKING:
    from quantkit.model.measured import Cached, Measured, State


def measured_model(config: Mapping[str, Any], dtype: str) -> tuple[Architecture, Inventory]:
    """The model that a config.json's object describes, in `dtype`, and all of its tensors.

    Raises:
        RefusedError: transformers does not know the config, it needs custom code, is no decoder, or
            does not run without weights.
    """
    from quantkit.model.measured import measure

    found = measure(config)
    text = found.text
    embedding = found.shapes.get(found.embedding, (0, 0))
    empty = Architecture(
        model_type=str(text.get("model_type") or config.get("model_type")),
        hidden=_size(text, "hidden_size") or embedding[1],
        vocabulary=embedding[0] or _size(text, "vocab_size") or 0,
        tied=not found.head,
        layers=(Layer(None, None),) * len(found.caches),
        context=_size(text, "max_position_embeddings"),
        dtype=dtype,
    )
    inventory = _inventory(found, empty)
    blocks: list[list[PlannedTensor]] = [[] for _ in found.caches]
    for tensor in inventory.tensors:
        if tensor.layer is not None:
            blocks[tensor.layer].append(tensor)
    layers = tuple(_layer(found, index, tuple(tensors)) for index, tensors in enumerate(blocks))
    return replace(empty, layers=layers), inventory


def _size(text: Mapping[str, Any], name: str) -> int | None:
    value = text.get(name)
    return value if type(value) is int and value > 0 else None


def _inventory(found: "Measured", architecture: Architecture) -> Inventory:
    """The tensors by name, as those of files."""
    headers = {
        name: TensorInfo("F32" if name in found.buffers else architecture.dtype, shape, "", 0, 0)
        for name, shape in found.shapes.items()
    }
    tensors = inventory_from_headers(headers, architecture).tensors
    placed = tuple(_placed(found, tensor) for tensor in tensors)
    return Inventory(placed, "the model's class in transformers")


def _placed(found: "Measured", tensor: PlannedTensor) -> PlannedTensor:
    """A tensor with its place in the model, which its class tells; a name may not.

    What lies outside of the text model belongs to its towers.
    """
    name, start = tensor.name, f"{found.blocks}."
    decoder = found.blocks.rpartition(".")[0]
    if name.startswith(start):
        layer = int(name[len(start) :].partition(".")[0])
        return tensor._replace(layer=layer, buffer=name in found.buffers)
    if name == found.embedding:
        return tensor._replace(part="embedding", split="vocabulary", layer=None)
    if name == found.head:
        linear = name.removesuffix(".weight")
        return tensor._replace(part="head", split="vocabulary", layer=None, linear=linear)
    outside = tensor.part == "tower" or not name.startswith(f"{decoder}." if decoder else "")
    part = "tower" if outside else tensor.part
    return PlannedTensor(name, tensor.shape, tensor.dtype, part, buffer=name in found.buffers)


def _layer(found: "Measured", index: int, tensors: Sequence[PlannedTensor]) -> Layer:
    mixers = _mixers(found, index, tensors)
    feed_forward = _feed_forward(found.text, tensors, found.active.get(index))
    return Layer(mixers[0] if mixers else None, feed_forward, tuple(mixers[1:]))


def _mixers(found: "Measured", index: int, tensors: Sequence[PlannedTensor]) -> list[Mixer]:
    """Keys and values, or a latent; then what further vectors and states a block caches."""
    from quantkit.model.measured import Cached, State

    vectors = [each for each in found.caches[index] if isinstance(each, Cached)]
    states = [each for each in found.caches[index] if isinstance(each, State)]
    heads = _size(found.text, "num_attention_heads") or 1
    mixers: list[Mixer] = []
    if latent := _latent(found.text, vectors, heads):
        mixers, vectors = [latent], []
    elif len(vectors) > 1 and _is_pair(*vectors[:2]):
        key, value = vectors[:2]
        other = value.width if value.width != key.width else None
        most = max(heads, key.heads)
        mixers = [Attention(most, key.heads, key.width, key.window, value_dim=other)]
        vectors = vectors[2:]
    mixers += [Stored(each.heads, each.width, each.window, each.every) for each in vectors]
    if states:
        mixers.append(_recurrent(states))
    attends = any(tensor.part == "attention" for tensor in tensors)
    if not mixers and attends and _size(found.text, "num_kv_shared_layers"):
        width = _size(found.text, "head_dim") or 1
        mixers.append(Attention(heads, heads, width, shares_cache=True))
    return mixers


def _is_pair(key: "Cached", value: "Cached") -> bool:
    return (key.heads, key.window, key.every) == (value.heads, value.window, 1)


def _latent(
    text: Mapping[str, Any], vectors: Sequence["Cached"], heads: int
) -> LatentAttention | None:
    """Multi-head latent attention, where the config's ranks are the widths of the cache."""
    rank, rope = _size(text, "kv_lora_rank"), _size(text, "qk_rope_head_dim")
    widths = [each.width for each in vectors]
    plain = all((each.heads, each.window, each.every) == (1, None, 1) for each in vectors)
    if rank is None or rope is None or not plain or widths[:2] != [rank, rope] or len(widths) > 3:
        return None
    return LatentAttention(
        heads=heads,
        query_rank=_size(text, "q_lora_rank"),
        kv_rank=rank,
        rope_dim=rope,
        nope_dim=_size(text, "qk_nope_head_dim") or 0,
        value_dim=_size(text, "v_head_dim") or 0,
        index_dim=sum(widths[2:]),
    )


def _recurrent(states: Sequence["State"]) -> Recurrent:
    """States of fixed size; one in 16 bits counts as half as many in fp32."""
    steps = [each.shape for each in states if each.steps]
    columns = max((shape[-1] for shape in steps), default=0)
    kept = sum(map(prod, steps))
    wide = sum(prod(each.shape) for each in states if each.wide and not each.steps)
    narrow = sum(prod(each.shape) for each in states if not each.wide and not each.steps)
    return Recurrent("measured", -(-kept // max(1, columns)), columns, wide + -(-narrow // 2))


def _feed_forward(
    text: Mapping[str, Any], tensors: Sequence[PlannedTensor], active: int | None
) -> FeedForward | Experts | None:
    """A block's MLP or experts, by the linears that read and write its inner width."""
    width, gated = _widths([tensor for tensor in tensors if tensor.part == "mlp"])
    experts = [tensor for tensor in tensors if tensor.part == "experts"]
    stacked = [tensor.shape for tensor in experts if len(tensor.shape) == 3]
    count = sum(tensor.linear is not None and tensor.split == "columns" for tensor in experts)
    if not count and not stacked:
        return FeedForward(width, gated) if width else None
    total, two = _widths(experts)
    if not count:  # one tensor holds all, those of gate and up side by side
        count, narrow = stacked[0][0], min(map(prod, stacked))
        total = narrow // (_size(text, "hidden_size") or stacked[0][1])
        two = sum(map(prod, stacked)) > 2 * narrow
    active = active or _size(text, "num_experts_per_tok") or count
    return Experts(count, min(active, count), total // count, width, two)


def _widths(tensors: Sequence[PlannedTensor]) -> tuple[int, bool]:
    """Inner width of linears together, and whether there is a gate beside."""
    linears = [tensor for tensor in tensors if tensor.linear]
    inner = sum(tensor.shape[1] for tensor in linears if tensor.split == "columns")
    outer = sum(tensor.shape[0] for tensor in linears if tensor.split == "rows")
    return inner, outer >= 2 * inner
