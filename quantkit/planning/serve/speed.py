"""Upper bounds of speed: what must be read for a token, what must be multiplied for a prompt.

No engine reaches them: real ones get 60 to 90 % of the memory bandwidth in decoding, and 40 to 70 %
of the arithmetic in prefill; small models are bound by launches instead.
"""

import math

from quantkit.core.serving import Bound, Degrees
from quantkit.planning.model.architecture import Architecture, Attention, Experts, LatentAttention
from quantkit.planning.model.kv import mixers
from quantkit.planning.model.parallel import Kind
from quantkit.planning.model.weights import ONE, Build, PlannedModel, kind_bytes


def touched_experts(experts: Experts, sequences: int) -> float:
    """How many experts of a layer at least one of `sequences` tokens goes through, on average.

    Where routing is uniform: E * (1 - (1 - k / E) ** N).
    """
    return experts.count * (1 - (1 - experts.active / experts.count) ** sequences)


def read_bytes(model: PlannedModel, build: Build, sequences: int, degrees: Degrees = ONE) -> int:
    """Bytes of weights that a step of decoding reads: no tower, no table, only experts in use."""
    total, experts = 0, 0
    for kind in model.kinds:
        size = kind_bytes(build, kind, degrees)
        if kind.tensor.part == "experts":
            experts += size
        elif kind.tensor.part == "tower":
            continue
        elif kind.tensor.part != "embedding" or _is_head(kind, model.architecture):
            total += size
    layers = model.architecture.layers
    kinds = [x.feed_forward for x in layers if isinstance(x.feed_forward, Experts)]
    if kinds:
        used = sum(touched_experts(each, sequences) for each in kinds)
        experts = math.ceil(experts * used / sum(each.count for each in kinds))
    return total + experts


def _is_head(kind: Kind, architecture: Architecture) -> bool:
    """Whether a table of embeddings is read whole, as the head; positions and Gemma 3n's never."""
    table = kind.tensor.split == "vocabulary" and kind.tensor.shape[-1] == architecture.hidden
    return architecture.tied and table


def decode_bound(read: int, cache: int, sequences: int, bandwidth: float) -> Bound:
    """Tokens a second of all sequences together: each step reads weights and cache once."""
    rule = f"{sequences} / (({read} bytes of weights + {cache} of cache) / {bandwidth:.4g} bytes/s)"
    return Bound(sequences * bandwidth / (read + cache), rule)


def prefill_bound(model: PlannedModel, tokens: int, rate: float) -> Bound:
    """Tokens a second of a prompt of `tokens` tokens at `rate` operations a second."""
    operations = prefill_operations(model, tokens)
    rule = f"{tokens} tokens / ({operations:.4g} operations / {rate:.4g} a second)"
    return Bound(tokens * rate / operations, rule)


def prefill_operations(model: PlannedModel, tokens: int) -> float:
    """Multiplications and additions of a prompt: 2 for each weight in use, and the attention."""
    weights = sum(
        kind.count * _elements(kind.tensor.shape) * _in_use(model.architecture, kind.tensor.layer)
        if kind.tensor.part == "experts"
        else kind.count * _elements(kind.tensor.shape)
        for kind in model.kinds
        if kind.tensor.layer is not None and kind.tensor.part in ("attention", "mlp", "experts")
    )
    scores = sum(_attention(mixer, tokens) for mixer in mixers(model.architecture))
    return 2.0 * weights * tokens + scores


def _attention(mixer: object, tokens: int) -> int:
    """Operations of scores and values: 4 for each pair of tokens (causal), head and channel."""
    if isinstance(mixer, LatentAttention):
        return mixer.heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim) * tokens**2
    if not isinstance(mixer, Attention):
        return 0
    seen = min(tokens, mixer.window or tokens)
    pairs = seen * tokens - seen**2 // 2
    return 2 * mixer.heads * (mixer.head_dim + (mixer.value_dim or mixer.head_dim)) * pairs


def _in_use(architecture: Architecture, layer: int | None) -> float:
    experts = architecture.layers[layer].feed_forward if layer is not None else None
    return experts.active / experts.count if isinstance(experts, Experts) else 1.0


def _elements(shape: tuple[int, ...]) -> int:
    size = 1
    for dim in shape:
        size *= dim
    return size
