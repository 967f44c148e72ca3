"""The peak of a forward pass: what lives at once while one chunk of tokens goes through a layer."""

from quantkit.core.figure import Figure
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

LOGIT_BYTES = 6
"""Of a logit: 16 bits as the head gives it, and fp32 to sample from."""


def activation_peak(architecture: Architecture, tokens: int, rows: int, tensor: int = 1) -> Figure:
    """Bytes that `tokens` tokens and the logits of `rows` sequences need at most, on one rank.

    In and out of a layer and the residual stream, 4h, and the widest of what lies between, in 16
    bits, with an attention that never writes its scores (flash, SDPA): Korthikanti et al.,
    arXiv 2205.05198, 4, less what only training keeps.
    """
    hidden, vocabulary = architecture.hidden, architecture.vocabulary
    widest = max(
        (_width(layer, hidden, tensor) for layer in dict.fromkeys(architecture.layers)), default=0
    )
    between = tokens * widest // tensor
    total = tokens * 4 * hidden + between + rows * vocabulary * LOGIT_BYTES
    rule = (
        f"{tokens} tokens * (4 * {hidden} + {widest}{f' / {tensor}' if tensor > 1 else ''})"
        f" + {rows} rows * {vocabulary} logits * {LOGIT_BYTES}"
    )
    return Figure("activations", total, rule)


def _width(layer: Layer, hidden: int, tensor: int) -> int:
    """Bytes a token of the wider half of a block, before the ranks share them."""
    return max(sum(map(_mixer_width, layer.mixers)), _feed_forward_width(layer, hidden, tensor))


def _mixer_width(mixer: Mixer) -> int:
    match mixer:
        case Attention(heads, kv_heads, head_dim):
            return 2 * (heads + 2 * kv_heads + heads) * head_dim
        case LatentAttention():
            keys = mixer.nope_dim + mixer.rope_dim
            return 2 * mixer.heads * (2 * keys + 2 * mixer.value_dim)
        case Recurrent():
            return 6 * mixer.convolution
        case _:
            return 0


def _feed_forward_width(layer: Layer, hidden: int, tensor: int) -> int:
    """Gate and up beside their product; of experts also each row's copy of the hidden state."""
    match layer.feed_forward:
        case FeedForward(width, gated):
            return (6 if gated else 4) * width
        case Experts() as experts:
            inner = (6 if experts.gated else 4) * (experts.active * experts.width)
            shared = (6 if experts.gated else 4) * experts.shared_width
            return inner + shared + 2 * experts.active * hidden * tensor
        case _:
            return 0
