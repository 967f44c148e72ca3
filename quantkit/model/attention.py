"""Calls of attention as transformers dispatches them, and the caches of keys and values.

Nearly all models call attention by transformers' registry, `AttentionInterface`, with keys after
the rotary embedding and one head for each KV head: what a cache holds.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

See = Callable[["AttentionCall"], Any]
CACHE_ARGUMENTS = ("past_key_values", "past_key_value")


@dataclass(frozen=True)
class AttentionCall:
    """A call of the attention function of `module`, on queries, keys, values and more.

    Queries are (sequences, heads, length, width), keys and values the same with KV heads, all in
    the model's dtype.
    """

    function: Callable[..., Any]
    module: nn.Module
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def run(self) -> Any:
        """What the function returns: first the output, (sequences, length, heads, width)."""
        states = (self.query, self.key, self.value)
        return self.function(self.module, *states, *self.arguments, **self.keywords)


@dataclass(frozen=True)
class Seen:
    """A call of an attention while a block was traced, after `linears` calls of linears."""

    module: nn.Module
    key: tuple[int, ...]
    value: tuple[int, ...]
    linears: int


@contextmanager
def attention_through(see: See) -> Iterator[None]:
    """Have `see` answer every call of attention that goes by transformers' registry."""
    from transformers import AttentionInterface

    own = AttentionInterface.get_interface

    def get_interface(self: Any, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        return partial(_seen, see, own(self, name, default))

    AttentionInterface.get_interface = get_interface
    try:
        yield
    finally:
        AttentionInterface.get_interface = own


def _seen(  # as the registry's functions are called
    see: See,
    function: Callable[..., Any],
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *others: Any,
    **keywords: Any,
) -> Any:
    return see(AttentionCall(function, module, query, key, value, others, keywords))


def cache_argument(module: nn.Module) -> str | None:
    """The name of the argument by which an attention is given its cache; None without one."""
    known = inspect.signature(module.forward).parameters
    return next((name for name in CACHE_ARGUMENTS if name in known), None)


class RoundedCache:
    """Stands for the cache of one attention, or for none: rounds what it is given to keep."""

    def __init__(self, own: Any, change: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._own, self._change = own, change

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *others: Any, **named: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values, of new ones (sequences, KV heads, length, width)."""
        key, value = self._change(key, value)
        if self._own is None:
            return key, value
        known: tuple[torch.Tensor, torch.Tensor] = self._own.update(key, value, *others, **named)
        return known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def round_cache(
    attention: nn.Module, change: Callable[..., tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Have an attention keep, and compute with, what `change` makes of its keys and values."""
    name = cache_argument(attention)
    assert name is not None  # or the attention was refused
    signature = inspect.signature(attention.forward)

    def replace(_: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        bound = signature.bind(*given, **keywords)
        bound.arguments[name] = RoundedCache(bound.arguments.get(name), change)
        return bound.args, bound.kwargs

    attention.register_forward_pre_hook(replace, with_kwargs=True)
