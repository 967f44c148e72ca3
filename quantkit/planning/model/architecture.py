"""What a decoder is made of, as far as memory and speed go: read from its config, no torch.

Widths are numbers of elements. One `Layer` is one decoder block: a mixer (attention or a recurrent
state) and a feed-forward part, either of which may be missing.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Attention:
    """Softmax attention with keys and values of its own: MHA, GQA and MQA.

    `window`: tokens that a sliding (or chunked) layer looks back on; None is all of them.
    `shares_cache`: it reads the keys and values of an earlier layer, and stores none.
    `value_dim`: of values, where it is not that of queries and keys.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    shares_cache: bool = False
    value_dim: int | None = None


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1): one latent for all heads.

    The cache of a token holds `kv_rank + rope_dim` elements, and `index_dim` of a sparse indexer.
    """

    heads: int
    query_rank: int | None
    kv_rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    index_dim: int = 0


@dataclass(frozen=True)
class Recurrent:
    """A mixer whose cache does not grow: Mamba, Mamba-2, gated delta rule.

    For a sequence it keeps `convolution` elements in the model's dtype for each of `columns`
    steps, and `state` elements in fp32.
    """

    kind: str
    convolution: int
    columns: int
    state: int


@dataclass(frozen=True)
class Stored:
    """Vectors that a block caches beside or in place of keys and values: `heads` of `width`.

    One for each token, or for `every` tokens (compressed ones); `window` as in `Attention`.
    """

    heads: int
    width: int
    window: int | None = None
    every: int = 1


@dataclass(frozen=True)
class FeedForward:
    """A dense MLP; `gated` ones (SwiGLU) have a third matrix."""

    width: int
    gated: bool = True


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: `count` of `width` each, `active` of them for a token.

    `shared_width`: of the expert that every token goes through, 0 where there is none.
    """

    count: int
    active: int
    width: int
    shared_width: int = 0
    gated: bool = True


Mixer = Attention | LatentAttention | Recurrent | Stored


@dataclass(frozen=True)
class Layer:
    """One decoder block; `beside`: what it caches in parallel to its mixer."""

    mixer: Mixer | None
    feed_forward: FeedForward | Experts | None
    beside: tuple[Mixer, ...] = ()

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """All that a block has of mixers."""
        return self.beside if self.mixer is None else (self.mixer, *self.beside)


@dataclass(frozen=True)
class Architecture:
    """A decoder: its blocks in order, and what surrounds them.

    `context`: the longest one that the config allows, None where it does not say.
    """

    model_type: str
    hidden: int
    vocabulary: int
    tied: bool
    layers: tuple[Layer, ...]
    context: int | None
    dtype: str
