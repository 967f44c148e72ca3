"""The contract of a checkpoint format: encode, decode, config block and rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from quantkit.core.errors import InputError
from quantkit.core.facts import Layout, LinearFacts, ModelFacts
from quantkit.core.scheme import KVCache, Scheme
from quantkit.core.version import __version__

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor

KEY_SCALE, VALUE_SCALE = "k_scale", "v_scale"
"""The scales of a cache, as compressed-tensors names them after the path of an attention."""
Schemes = Callable[[str], Scheme | None]
"""Name of a linear -> what it is quantized to; None if it is dense."""
Rules = TypeVar("Rules")
BLOCK = "the quantization config"
"""What messages call the block that a format reads."""
PRODUCER = {"name": "quantkit", "version": __version__}
"""What a block says of its writer where a format is read as such only if it is our own."""


@dataclass(frozen=True)
class Format:
    """One checkpoint format.

    encode(qtensor, dtype): suffix -> tensor, e.g. {"qweight": ...}; stored as `<linear>.<suffix>`.
        `dtype` is the model's own ("bfloat16", ...), for formats that state the dtype to dequantize
        to. Shapes and dtypes never depend on values.
    decode(tensors, scheme, facts): the same QTensor again, bit for bit. Raises InputError where a
        tensor violates the format, RefusedError where a QTensor cannot represent it (act-order's
        g_idx).
    layout(scheme, linear, dtype): dtypes and shapes of what encode returns, without torch; contains
        `weight` where the format replaces that tensor.
    config(model): the `quantization_config` block of config.json.
    parse(config): of such a block, including those that other tools wrote, the function that gives
        the Scheme of a linear by its name; None if it is dense.
    check(scheme, linear): a sentence that states what the format does not support and what it
        does, or None.
    `kv_caches`: the caches whose scales it can hold, as KEY_SCALE and VALUE_SCALE of attentions;
        kv_cache_of(config) is what a block states of it.
    `unloaded`: why no engine loads the format on purpose; empty where an engine's file lists it.
    """

    name: str
    summary: str
    quant_method: str
    encode: Callable[[QTensor, str], dict[str, torch.Tensor]]
    decode: Callable[[Mapping[str, torch.Tensor], Scheme, LinearFacts], QTensor]
    layout: Callable[[Scheme, LinearFacts, str], Layout]
    config: Callable[[ModelFacts], dict[str, Any]]
    parse: Callable[[Mapping[str, Any]], Schemes]
    check: Callable[[Scheme, LinearFacts], str | None]
    matches: Callable[[Mapping[str, Any]], bool]
    unloaded: str = ""
    kv_caches: tuple[KVCache, ...] = ()
    kv_cache_of: Callable[[Mapping[str, Any]], KVCache | None] = lambda _: None


def parser(
    read: Callable[[Mapping[str, Any]], Rules], scheme_of: Callable[[Rules, str], Scheme | None]
) -> Callable[[Mapping[str, Any]], Schemes]:
    """`parse` of a format, made safe for untrusted config blocks.

    `read` looks through a block once, which may name 18,000 linears; `scheme_of` then is fast.

    Raises:
        InputError: a field of the block has another type than the two expect.
    """

    def parse(config: Mapping[str, Any]) -> Schemes:
        with _stating("linears"):
            rules = read(config)

        def scheme(name: str) -> Scheme | None:
            with _stating(f"`{name}`"):
                return scheme_of(rules, name)

        return scheme

    return parse


@contextmanager
def _stating(what: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the quantization config does not state the scheme of {what}",
            why=f"{type(error).__name__}: {error}",
            hint="the config.json that belongs to these weights",
        ) from error


def is_own(quant_method: str, block: Mapping[str, Any]) -> bool:
    """Whether a quantization block is of that method, and `PRODUCER` of some version wrote it."""
    producer = block.get("producer")
    own = isinstance(producer, Mapping) and producer.get("name") == PRODUCER["name"]
    return own and block.get("quant_method") == quant_method


def stored_tensor(
    tensors: Mapping[str, torch.Tensor],
    linear: LinearFacts,
    suffix: str,
    dtypes: str,
    shape: tuple[int, ...],
) -> torch.Tensor:
    """`tensors[suffix]` of `linear`, checked: dtype one of `dtypes` (names with spaces), `shape`.

    Raises:
        InputError: it is missing, or of another type or shape.
    """
    name = f"{linear.name}.{suffix}"
    tensor = tensors.get(suffix)
    if tensor is None:
        raise InputError(f"tensor `{name}` is missing", why=f"found: {', '.join(sorted(tensors))}")
    found, found_shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if found not in dtypes.split() or found_shape != shape:
        raise InputError(
            f"tensor `{name}` is {found} {found_shape}",
            why=f"the format requires {' or '.join(dtypes.split())} {shape}",
        )
    return tensor
