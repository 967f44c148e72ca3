"""vLLM's paged KV cache: blocks, and how layers of different kinds share one pool of them.

Rules: vLLM 0.33 source, v1/core/kv_cache_utils.py. Layers of one kind make one group, and a block
holds a few tokens of all of them. Layers of several kinds are split into groups of equal size, each
with blocks of its own from the pool; what is missing in the last group of a kind is padding.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf

from quantkit.core.figure import Figure
from quantkit.core.serving import CacheDtype
from quantkit.planning.model.architecture import Architecture, Mixer, Recurrent
from quantkit.planning.model.kv import mixers, token_bytes, window

BLOCK_TOKENS = 16

STATE_BLOCKS = 2
"""Of a sequence, in each group of recurrent layers: prefix caching, which is on unless it is turned
off, keeps the state at the last whole block beside the running one."""


@dataclass(frozen=True)
class Group:
    """Layers that share a table of blocks; `state` ones need a fixed number of them."""

    block_tokens: int
    window: int | None = None
    state: bool = False


@dataclass(frozen=True)
class PagedCache:
    """A pool's blocks: `block_bytes` each on one rank, claimed by every group on its own."""

    block_bytes: int
    groups: tuple[Group, ...]
    rule: str


@dataclass(frozen=True)
class _Kind:
    """Layers that vLLM puts together: same window, same bytes."""

    window: int | None
    token: int
    state: int


def paged_cache(
    architecture: Architecture,
    dtype: CacheDtype = "16-bit",
    *,
    tp: int = 1,
    block_tokens: int = BLOCK_TOKENS,
) -> PagedCache:
    """How vLLM pages the cache of one rank.

    An attention layer's page is its bytes for `block_tokens` tokens. Beside recurrent layers the
    blocks get as many tokens as make an attention page no smaller than a state, which is padded.
    States are in 16 bits, as they are unless `mamba_ssm_cache_dtype` says fp32.
    A chunked layer (Llama 4) counts as a sliding one, which is at most a block too many.
    """
    found = (_kind(mixer, dtype, tp) for mixer in mixers(architecture))
    kinds = Counter(kind for kind in found if kind.token or kind.state)
    state = max((kind.state for kind in kinds), default=0)
    token = max((kind.token for kind in kinds), default=0)
    if state and token:
        block_tokens *= ceil(state / (block_tokens * token))
    pages = {kind: kind.state or kind.token * block_tokens for kind in kinds}
    if len({(kind.window, bool(kind.state)) for kind in kinds}) <= 1:
        return _alike(kinds, pages, block_tokens)
    return _mixed(kinds, pages, block_tokens)


def blocks_per_sequence(cache: PagedCache, tokens: int, in_flight: int) -> int:
    """Blocks that one sequence of `tokens` tokens claims at most.

    `in_flight`: tokens scheduled and not yet done, whose blocks a window cannot give back: the
    tokens of a batch, twice that with asynchronous scheduling.
    """
    return sum(_claimed(group, tokens, in_flight) for group in cache.groups)


def concurrency(cache: PagedCache, available: int, tokens: int, in_flight: int) -> float:
    """Sequences of `tokens` tokens that `available` bytes hold, as vLLM's log reports it."""
    if not cache.block_bytes:  # a pipeline stage whose layers all read others' caches
        return inf
    blocks = available // cache.block_bytes
    return blocks / blocks_per_sequence(cache, tokens, in_flight)


def paged_bytes(cache: PagedCache, tokens: int, sequences: int, in_flight: int) -> Figure:
    """Bytes of pool for `sequences` sequences of `tokens` tokens, and one block held back."""
    blocks = sequences * blocks_per_sequence(cache, tokens, in_flight) + 1
    return Figure("KV cache", blocks * cache.block_bytes, f"{blocks} blocks of {cache.rule}")


def _kind(mixer: Mixer, dtype: CacheDtype, tp: int) -> _Kind:
    state = 0
    if isinstance(mixer, Recurrent):  # vLLM keeps a step less than a convolution sees
        kept = mixer.convolution * (mixer.columns - 1)
        state = 2 * (kept + mixer.state) // tp
    token = token_bytes(mixer, dtype, tp)
    return _Kind(window(mixer) if token else None, token, state)


def _alike(kinds: Mapping[_Kind, int], pages: Mapping[_Kind, int], block_tokens: int) -> PagedCache:
    """One group; layers may differ in width, as each has a page of its own."""
    block_bytes = sum(count * pages[kind] for kind, count in kinds.items())
    groups = tuple({Group(block_tokens, kind.window, bool(kind.state)) for kind in kinds})
    return PagedCache(block_bytes, groups, f"{block_tokens} tokens of {sum(kinds.values())} layers")


def _mixed(kinds: Mapping[_Kind, int], pages: Mapping[_Kind, int], block_tokens: int) -> PagedCache:
    """Groups of as many layers as the rarest kind has, or the commonest if hardly commoner."""
    fewest, most = min(kinds.values()), max(kinds.values())
    size = most if most < 1.5 * fewest else fewest
    page = max(pages.values())
    groups: list[Group] = []
    for kind, count in kinds.items():
        exact = not kind.state and page % pages[kind] == 0
        tokens = block_tokens * page // pages[kind] if exact else block_tokens
        groups += [Group(tokens, kind.window, bool(kind.state))] * ceil(count / size)
    padding = size * len(groups) - sum(kinds.values())
    rule = f"{size} pages of {page} bytes; {len(groups)} groups, {padding} layers of padding"
    return PagedCache(size * page, tuple(groups), rule)


def _claimed(group: Group, tokens: int, in_flight: int) -> int:
    if group.state:
        return STATE_BLOCKS
    if group.window is None:
        return ceil(tokens / group.block_tokens)
    held = min(group.window - 1 + in_flight, tokens)
    return ceil(held / group.block_tokens) + 1  # a window may start inside a block
