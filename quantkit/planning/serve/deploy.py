"""Whether a build fits a GPU: weights, activations, overheads and KV cache against what is there.

Everything but the cache is fixed before a model is served; the cache takes the rest. What "0.9 of
the memory" means is each engine's own: `settings` has their rules. All sizes are in bytes.
"""

from collections.abc import Callable
from dataclasses import replace
from math import isinf
from typing import Literal

from quantkit.checkpoint.stored import DTYPE_BYTES
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.figure import Figure
from quantkit.core.serving import CacheDtype, Deployment, Load
from quantkit.planning.model.architecture import Architecture
from quantkit.planning.model.kv import cache_bytes, dynamic_cache
from quantkit.planning.model.parallel import Stage, stages_of
from quantkit.planning.model.served import as_served, served_cache
from quantkit.planning.model.weights import Build, PlannedModel, weigh, weights_rule
from quantkit.planning.serve.activations import activation_peak
from quantkit.planning.serve.paging import concurrency, paged_bytes, paged_cache
from quantkit.planning.serve.place import Place

DEFAULT_CONTEXT = 8192
MOST_CONTEXT = 2**24
MOST_SEQUENCES = 2**16


def load_of(
    architecture: Architecture, context: int | None, sequences: int, kv: Literal[16, 8]
) -> Load:
    """The load; where no context is stated, the model's own, at most 8192 tokens.

    Raises:
        InputError: a number that no engine serves.
        RefusedError: a context beyond the model's own.
    """
    if kv not in (16, 8):
        what = f"the KV cache cannot have {kv} bits an element"
        raise InputError(what, hint="--kv 16, or --kv 8")
    if not 1 <= sequences <= MOST_SEQUENCES:
        what = f"the batch is {sequences}; it must be from 1 to {MOST_SEQUENCES}"
        raise InputError(what, hint="--batch 8")
    if context is not None and not 1 <= context <= MOST_CONTEXT:
        what = f"the context is {context} tokens; it must be from 1 to {MOST_CONTEXT}"
        raise InputError(what, hint="--context 8k")
    most = architecture.context
    if context is not None and most is not None and context > most:
        raise RefusedError(
            f"the context of {context:,} tokens is longer than the model's",
            why=f"its config.json allows {most:,} tokens",
            hint=f"--context {most}",
        )
    length = context or min(architecture.context or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    return Load(length, sequences, "fp8" if kv == 8 else "16-bit")


def deploy(model: PlannedModel, build: Build, place: Place, load: Load) -> Deployment:
    """How a build fills its rank with least room, and what load would still fit."""
    model = as_served(model, place.engine, place.gpu.capability)
    load = replace(load, cache=served_cache(model, load.cache))
    stages = stages_of(len(model.architecture.layers), place.degrees.pipeline)
    ranks = [_rank(model, build, place, load, stage) for stage in stages]
    tightest = min(ranks, key=lambda rank: rank.budget.bytes - rank.total)
    return replace(
        tightest,
        tokens=min(rank.tokens for rank in ranks),
        longest=min(rank.longest for rank in ranks),
        most=min(rank.most for rank in ranks),
    )


def _rank(model: PlannedModel, build: Build, place: Place, load: Load, stage: Stage) -> Deployment:
    architecture = stage.of(model.architecture)
    budget, fixed = fixed_figures(model, build, place, load, stage)
    weights = sum(figure.bytes for figure in fixed if figure.name.startswith("weights"))
    cache = cache_rule(architecture, place, load.cache)

    def fits(context: int, sequences: int) -> bool:
        tried = replace(load, context=context, sequences=sequences)
        peak = activations(architecture, place, tried)
        other = sum(f.bytes for f in place.settings.overheads(peak, place.degrees))
        return weights + other + cache(context, sequences).bytes <= budget.bytes

    limit = model.architecture.context or MOST_CONTEXT
    return Deployment(
        load,
        budget,
        fixed,
        cache(load.context, load.sequences),
        tokens=capacity(architecture, place, load, budget.bytes - sum(f.bytes for f in fixed)),
        longest=largest(lambda context: fits(context, load.sequences), limit),
        most=largest(lambda count: fits(load.context, count), MOST_SEQUENCES),
    )


def fixed_figures(
    model: PlannedModel, build: Build, place: Place, load: Load, stage: Stage
) -> tuple[Figure, tuple[Figure, ...]]:
    """What the engine may take of a GPU, and what of it is gone before there is a cache."""
    settings, degrees = place.settings, place.degrees
    padded = place.engine != "transformers"
    parts = weigh(model, build, degrees, stage, padded=padded)
    how = weights_rule(model, build, "the rank's")
    weights = tuple(Figure(f"weights: {part}", count, how) for part, count in parts.items())
    peak = activations(stage.of(model.architecture), place, load)
    budget = settings.budget(place.gpu.memory)
    return budget, (*weights, *settings.overheads(peak, degrees))


def activations(architecture: Architecture, place: Place, load: Load) -> Figure:
    """The peak of a prefill step: of a chunk, or in transformers of all prompts at once."""
    settings, tokens, rows = place.settings, place.settings.chunk, place.settings.rows
    if place.engine == "transformers":
        tokens, rows = load.context * load.sequences, load.sequences
    peak = activation_peak(architecture, tokens or settings.chunk, rows, place.degrees.tensor)
    if DTYPE_BYTES[architecture.dtype] > 2:
        return replace(peak, bytes=2 * peak.bytes, rule=f"2 * ({peak.rule}): fp32")
    return peak


Cache = Callable[[int, int], Figure]


def cache_rule(architecture: Architecture, place: Place, dtype: CacheDtype) -> Cache:
    """Bytes of one rank's cache by context and number of sequences, as the engine keeps it."""
    tensor = place.degrees.tensor
    if place.engine == "vllm":
        paged = paged_cache(architecture, dtype, tp=tensor, block_tokens=place.settings.block)
        return lambda context, n: paged_bytes(paged, context, n, place.settings.chunk)
    if place.engine == "transformers":
        return lambda context, n: dynamic_cache(architecture, context, n, dtype).peak
    block = place.settings.block

    def whole_pages(context: int, sequences: int) -> Figure:
        rounded = -(-context // block) * block
        return cache_bytes(architecture, rounded, sequences, dtype=dtype, tp=tensor)

    return whole_pages


def capacity(architecture: Architecture, place: Place, load: Load, room: int) -> int:
    """Tokens that `room` bytes of cache hold in sequences of the load's length.

    For vLLM as its log counts them: whole blocks, and by the sequences that these make.
    """
    if room <= 0:
        return 0
    if place.engine == "vllm":
        tensor, block = place.degrees.tensor, place.settings.block
        paged = paged_cache(architecture, load.cache, tp=tensor, block_tokens=block)
        sequences = concurrency(paged, room, load.context, place.settings.chunk)
        return MOST_CONTEXT if isinf(sequences) else int(sequences * load.context)
    one = cache_rule(architecture, place, load.cache)(load.context, 1).bytes
    return room * load.context // one if one else MOST_CONTEXT


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """The largest number up to `limit` that fits, if all smaller ones do; 0 if not even 1."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
