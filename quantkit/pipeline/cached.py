"""A model with another KV cache than its file states."""

from dataclasses import replace
from typing import Literal

from quantkit.grid.kv_cache import CacheScales
from quantkit.model.opened import OpenModel
from quantkit.model.structure import trace_structure
from quantkit.pipeline.kv_cache import require_caches

CacheChoice = Literal["stored", "16-bit", "fp8"]
"""A cache as the file states it; in 16 bits; in e4m3 by the file's scales, or by 1 without any."""


def cached(model: OpenModel, choice: CacheChoice) -> OpenModel:
    """The model with another cache of keys and values.

    Raises:
        RefusedError: an attention has no cache that can be rounded.
    """
    if choice == "stored":
        return model
    if choice == "16-bit":
        return replace(model, cache={})
    structure = trace_structure(model.skeleton, model.weights.repeats, model.device)
    attentions = structure.attentions(model.skeleton)
    require_caches(model.text_config, attentions, shared=bool(model.weights.repeats))
    ones = dict.fromkeys(attentions, CacheScales(1.0, 1.0))
    return replace(model, cache={**ones, **model.cache})
