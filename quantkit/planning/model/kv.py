"""What a sequence keeps between tokens: keys and values by layer kind, and recurrent states.

A layer that looks at everything grows with every token, one with a window stops at its width, and a
recurrent mixer (Mamba, gated delta rule) keeps one state whatever the length. Sizes are of one
tensor-parallel rank; of a pipeline stage they are had by leaving out the other stages' layers.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from quantkit.core.errors import RefusedError
from quantkit.core.figure import Figure
from quantkit.core.serving import CacheDtype
from quantkit.planning.model.architecture import (
    Architecture,
    Attention,
    LatentAttention,
    Mixer,
    Recurrent,
    Stored,
)

EXPANDED = ("falcon",)
"""Families whose code in transformers repeats grouped heads for each query before it caches."""


def vector_bytes(elements: int, dtype: CacheDtype) -> int:
    """Bytes of one cached vector: the key or the value of a head and token, or a latent.

    vLLM 0.33 source: an fp32 scale for each token and head, or in nvfp4 an fp8 scale for 16.
    """
    match dtype:
        case "16-bit":
            return 2 * elements
        case "32-bit":
            return 4 * elements
        case "fp8":
            return elements
        case "int8-token-head" | "fp8-token-head":
            return elements + 4
        case "nvfp4":
            return elements // 2 + elements // 16


def token_bytes(mixer: Mixer | None, dtype: CacheDtype = "16-bit", tp: int = 1) -> int:
    """Bytes that a token adds to a layer's cache, as long as it lies in the layer's window.

    KV heads are split over `tp` ranks and copied where there are fewer than ranks; the latent of
    MLA is copied to every rank.

    Raises:
        RefusedError: a cache dtype with a scale for each head, where heads share a latent.
    """
    match mixer:
        case Attention(shares_cache=False):
            widths = (mixer.head_dim, mixer.value_dim or mixer.head_dim)
            return max(1, mixer.kv_heads // tp) * sum(vector_bytes(each, dtype) for each in widths)
        case Stored():
            return max(1, mixer.heads // tp) * vector_bytes(mixer.width, dtype) // mixer.every
        case LatentAttention():
            if dtype not in ("16-bit", "32-bit", "fp8"):
                raise RefusedError(
                    f"a cache in {dtype} cannot hold the latents of multi-head latent attention",
                    why="its scales belong to heads, and a latent belongs to all heads",
                    hint="a 16-bit or fp8 cache",
                )
            return vector_bytes(mixer.kv_rank + mixer.rope_dim + mixer.index_dim, dtype)
        case _:
            return 0


def state_bytes(mixer: Mixer | None, tp: int = 1, *, itemsize: int = 2) -> int:
    """Bytes that a recurrent layer keeps for a sequence.

    As transformers 5.23 keeps them: the steps that a convolution sees in numbers of `itemsize`
    bytes, and the state in fp32.
    """
    if not isinstance(mixer, Recurrent):
        return 0
    return (itemsize * mixer.convolution * mixer.columns + 4 * mixer.state) // tp


def cache_bytes(
    architecture: Architecture,
    tokens: int,
    sequences: int = 1,
    *,
    dtype: CacheDtype = "16-bit",
    tp: int = 1,
) -> Figure:
    """Bytes that `sequences` of `tokens` tokens each need, before an engine rounds them up."""
    total = 0
    for mixer in mixers(architecture):
        seen = min(tokens, window(mixer) or tokens)
        total += seen * token_bytes(mixer, dtype, tp) + state_bytes(mixer, tp)
    rule = f"min(tokens, window) * {_rule(architecture, dtype, tp)}; + recurrent states"
    return Figure("KV cache", sequences * total, rule)


@dataclass(frozen=True)
class DynamicCache:
    """What transformers' growing cache takes: the tokens in use, and the memory held for them.

    A sliding layer keeps one token less than its window, as a view: after a prefill the keys and
    values of the whole prompt stay alive behind it, until the next token is decoded. Then each
    layer in turn is copied to be longer by one, so that for a moment one is there twice: `peak`.
    """

    visible: Figure
    after_prefill: Figure
    decoding: Figure
    peak: Figure


def dynamic_cache(
    architecture: Architecture, tokens: int, sequences: int = 1, dtype: CacheDtype = "16-bit"
) -> DynamicCache:
    """Bytes of transformers 5.23's DynamicCache.

    `visible`, `after_prefill` and `peak` are of a prompt of `tokens`, `decoding` of one token more.
    """
    visible = after_prefill = decoding = grows = 0
    for each in mixers(architecture):
        mixer = _as_cached(architecture, each)
        size, width = token_bytes(mixer, dtype), window(mixer)
        state = state_bytes(mixer, itemsize=4 if dtype == "32-bit" else 2)
        used = size * (tokens if width is None else min(tokens, width - 1))
        visible += used + state
        after_prefill += size * tokens + state
        decoding += size * (tokens + 1 if width is None else min(tokens + 1, width)) + state
        grows = max(grows, used)
    rule = _rule(architecture, dtype, 1)
    if any(_as_cached(architecture, mixer) != mixer for mixer in mixers(architecture)):
        rule += ", each KV head once for every query head that reads it"
    kept = "min(tokens, window - 1)"
    full = f"{tokens} tokens, windows too, * {rule}; + recurrent states"
    return DynamicCache(
        Figure("cache in use", sequences * visible, f"{kept} * {rule}"),
        Figure("cache held after the prompt", sequences * after_prefill, full),
        Figure("cache held while decoding", sequences * decoding, f"(1 + {kept}) * {rule}"),
        Figure("KV cache", sequences * (after_prefill + grows), f"{full}; + a layer that grows"),
    )


def mixers(architecture: Architecture) -> Iterator[Mixer]:
    """Everything in the blocks that may cache something."""
    for layer in architecture.layers:
        yield from layer.mixers


def _as_cached(architecture: Architecture, mixer: Mixer) -> Mixer:
    """The mixer with as many KV heads as transformers caches."""
    expanded = architecture.model_type in EXPANDED
    if expanded and isinstance(mixer, Attention) and mixer.kv_heads > 1:
        return replace(mixer, kv_heads=mixer.heads)
    return mixer


def window(mixer: Mixer | None) -> int | None:
    """Tokens that an attention layer looks back on; None without limit, or where it is none."""
    return mixer.window if isinstance(mixer, Attention | Stored) else None


def _rule(architecture: Architecture, dtype: CacheDtype, tp: int) -> str:
    """The formula of a token's bytes, in words."""
    if any(isinstance(mixer, LatentAttention) for mixer in mixers(architecture)):
        return f"(KV rank + rope) * bytes in {dtype}, over the layers; a copy for each rank (MLA)"
    heads = "KV heads" if tp == 1 else f"max(1, KV heads // {tp})"
    beside = any(isinstance(mixer, Stored) for mixer in mixers(architecture))
    more = ", and further vectors" if beside else ""
    return f"2 * {heads} * head_dim * bytes in {dtype}, over the layers that store{more}"
