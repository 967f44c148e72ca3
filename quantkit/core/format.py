"""The contract of a checkpoint format: an inverse pair, a config block and its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor

Layout = dict[str, tuple[str, tuple[int, ...]]]
"""The tensors of one linear: suffix -> dtype as safetensors names it, and shape."""
STORED = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""Dtypes of models and scales as safetensors names them."""
REGEX_SECONDS = 1.0
"""For one name; patterns of strangers may need longer than anybody lives."""


@dataclass(frozen=True)
class LinearFacts:
    """Name, shape and kind of one linear, as a format or an engine sees it.

    `transposed` marks GPT-2's Conv1D, whose weight is stored (in_features, out_features).
    `fused` names the linears that read the same input (q, k, v or gate, up), itself included.
    """

    name: str
    out_features: int
    in_features: int
    transposed: bool = False
    fused: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelFacts:
    """What a config block must know of the whole model.

    `schemes` maps each quantized linear to its scheme, `skipped` names the linears left dense,
    `head` the output head. `dtype` is the model's own ("bfloat16", "float16", "float32").
    `block_prefix` is the module path of the block list, e.g. `model.layers`.
    """

    schemes: Mapping[str, Scheme]
    skipped: tuple[str, ...]
    head: str | None
    dtype: str
    block_prefix: str

    @property
    def dense(self) -> tuple[str, ...]:
        """Sorted names of the linears left as they are, the head always among them."""
        return tuple(sorted({*self.skipped, self.head or "lm_head"}))

    def by_scheme(self) -> dict[Scheme, list[str]]:
        """Each scheme and the linears that have it, both in a fixed order.

        Raises:
            RefusedError: no linear is quantized, or the head is.
        """
        if not self.schemes or self.head in self.schemes:
            raise RefusedError(
                f"`{self.head}` cannot be quantized" if self.schemes else "no linear is quantized",
                why="transformers loads quantized heads as random numbers, without an error",
                hint="quantize linears of the blocks, and those only",
            )
        found: dict[Scheme, list[str]] = {}
        for name, scheme in self.schemes.items():
            found.setdefault(scheme, []).append(name)
        return dict(sorted(found.items(), key=lambda item: item[0].label()))

    def one_scheme(self, format_name: str) -> Scheme:
        """The scheme that all quantized linears share, for formats that can state only one.

        Raises:
            RefusedError: they differ.
        """
        schemes = list(self.by_scheme())
        if len(schemes) > 1:
            raise RefusedError(
                f"format `{format_name}` holds one scheme for all linears, not {len(schemes)}",
                why=f"asked for: {', '.join(scheme.label() for scheme in schemes)}",
                hint="--format compressed-tensors",
            )
        return schemes[0]


@dataclass(frozen=True)
class Format:
    """One checkpoint format.

    encode(qtensor, dtype): suffix -> tensor, e.g. {"qweight": ...}; stored as `<linear>.<suffix>`.
        `dtype` is the model's own ("bfloat16", ...), for formats that state what engines dequantize
        to. Shapes and dtypes never depend on values.
    decode(tensors, scheme, facts): the QTensor back, bit for bit. InputError where a tensor is not
        what the format says, RefusedError where a QTensor cannot hold it (act-order's g_idx).
    layout(scheme, linear, dtype): exactly what encode gives for such a linear, without torch;
        `weight` is among its suffixes where that is replaced.
    config(model): the `quantization_config` block of config.json.
    parse(config, name): the Scheme of linear `name` under such a block, also other tools'; None
        if it is dense.
    check(scheme, linear): a sentence saying what the format cannot hold and what it can, or None.
    `unloaded`: why no engine is meant to load it; empty where the file of an engine lists it.
    """

    name: str
    summary: str
    quant_method: str
    encode: Callable[[QTensor, str], dict[str, torch.Tensor]]
    decode: Callable[[Mapping[str, torch.Tensor], Scheme, LinearFacts], QTensor]
    layout: Callable[[Scheme, LinearFacts, str], Layout]
    config: Callable[[ModelFacts], dict[str, Any]]
    parse: Callable[[Mapping[str, Any], str], Scheme | None]
    check: Callable[[Scheme, LinearFacts], str | None]
    matches: Callable[[Mapping[str, Any]], bool]
    unloaded: str = ""


Parse = Callable[[Mapping[str, Any], str], Scheme | None]


def parser(parse: Parse) -> Parse:
    """`parse` of a format, safe against config blocks from strangers.

    Raises:
        InputError: a field of the block is not of the kind that `parse` expects.
    """

    @wraps(parse)
    def safely(config: Mapping[str, Any], name: str) -> Scheme | None:
        try:
            return parse(config, name)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"the quantization config does not say how `{name}` is quantized",
                why=f"{type(error).__name__}: {error}",
                hint="the config.json that belongs to these weights",
            ) from error

    return safely


def stored_tensor(
    tensors: Mapping[str, torch.Tensor],
    linear: LinearFacts,
    suffix: str,
    dtypes: str,
    shape: tuple[int, ...],
) -> torch.Tensor:
    """`tensors[suffix]` of `linear`, checked against `dtypes` (names, space between) and `shape`.

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
            why=f"its format says {' or '.join(dtypes.split())} {shape}",
        )
    return tensor


def regex_covers(pattern: str, name: str) -> bool:
    """Whether the regex `pattern` of a config block matches the beginning of `name`.

    Raises:
        InputError: it is no regex, or one that takes for ever.
    """
    import regex

    try:
        return regex.match(pattern, name, timeout=REGEX_SECONDS) is not None
    except (regex.error, RecursionError, OverflowError, TimeoutError) as error:
        raise InputError(
            f"`{pattern[:80]}` in the quantization config is no regex that can be used",
            why=str(error) or type(error).__name__,
            hint="the config.json that belongs to these weights",
        ) from error
