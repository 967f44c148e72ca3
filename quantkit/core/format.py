"""The contract of a checkpoint format: an inverse pair, a config block and its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quantkit.core.scheme import Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor


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
    bias: bool = False
    fused: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelFacts:
    """What a config block must know of the whole model.

    `schemes` maps each quantized linear to its scheme, `skipped` names the linears left dense, `head` the
    output head's name. `dtype` is the model's own ("bfloat16", "float16", "float32").
    `block_prefix` is the module path of the block list, e.g. `model.layers`.
    """

    schemes: Mapping[str, Scheme]
    skipped: tuple[str, ...]
    head: str | None
    dtype: str
    block_prefix: str
    groups: tuple[tuple[str, ...], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Format:
    """One checkpoint format.

    encode(qtensor): suffix -> tensor, e.g. {"qweight": ...}; stored as `<linear>.<suffix>`.
    decode(tensors, scheme, facts): the QTensor back, bit for bit.
    suffixes(scheme): exactly the suffixes that encode gives, `weight` among them where it replaces it.
    config(model): the `quantization_config` block of config.json.
    parse(config, name): the Scheme of linear `name` under such a block (also other tools'), None if it is dense.
    check(scheme, linear): a sentence saying what the format cannot hold and what it can, or None.
    """

    name: str
    summary: str
    quant_method: str
    encode: Callable[[QTensor], dict[str, torch.Tensor]]
    decode: Callable[[Mapping[str, torch.Tensor], Scheme, LinearFacts], QTensor]
    suffixes: Callable[[Scheme], tuple[str, ...]]
    config: Callable[[ModelFacts], dict[str, Any]]
    parse: Callable[[Mapping[str, Any], str], Scheme | None]
    check: Callable[[Scheme, LinearFacts], str | None]
    matches: Callable[[Mapping[str, Any]], bool]
