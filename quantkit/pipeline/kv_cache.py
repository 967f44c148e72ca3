"""The scales of a KV cache: which attentions have some, and their tensors in an artifact."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from quantkit.core.errors import RefusedError
from quantkit.core.facts import Layout
from quantkit.core.format import KEY_SCALE, VALUE_SCALE
from quantkit.grid.kv_cache import CacheScales
from quantkit.model.attentions import Attention

WITHOUT = "the same without `kv_cache`"


def require_caches(config: Any, attentions: Mapping[str, Attention], *, shared: bool) -> None:
    """Check that every attention keeps plain keys and values, and was seen to.

    Engines round the caches of all, so that one without scales would be rounded with 1.
    `config` describes the decoder, and `attentions` are named by their full paths; `shared`: its
    blocks share weights.

    Raises:
        RefusedError: an attention does not.
    """
    faults = (f"`{path}`: {each.fault}" for path, each in attentions.items() if each.fault)
    if why := _odd(config, shared=shared) or next(faults, ""):
        what = f"the KV cache of `{config.model_type}` cannot be given scales"
        raise RefusedError(what, why=why, hint=WITHOUT)
    if not attentions:
        raise RefusedError("the model has no KV cache", why="no block has attention", hint=WITHOUT)


def _odd(config: Any, *, shared: bool) -> str:
    """Why caches of a model are not one of keys and values for each attention; empty if so."""
    if getattr(config, "kv_lora_rank", None):
        return "its attention caches a latent (MLA) in place of keys and values"
    if getattr(config, "num_kv_shared_layers", None):
        return "some layers read the cache of others"
    return "blocks share weights, and a file has room for one scale of each" if shared else ""


def cache_layout(stored: Iterable[str]) -> Layout:
    """The scales of attentions, which are given as the artifact names them, by their names."""
    return {f"{path}.{name}": ("F32", (1,)) for path in stored for name in (KEY_SCALE, VALUE_SCALE)}


def scale_tensors(found: Mapping[str, CacheScales]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that `cache_layout` has, fp32 (1,)."""
    for path, scales in found.items():
        yield f"{path}.{KEY_SCALE}", torch.tensor([scales.key])
        yield f"{path}.{VALUE_SCALE}", torch.tensor([scales.value])
