"""The tensors of a checkpoint as planning sees them: shape, bytes, part, and how ranks share them.

There are two ways to one: the headers of the files, and, without files, the config alone.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Part = Literal[
    "embedding",
    "attention",
    "mlp",
    "experts",
    "router",
    "norm",
    "head",
    "altup",
    "per-layer",
    "tower",
    "other",
]
"""`altup`, `per-layer`: what only Gemma 3n has. `tower`: what lies beside a text model, projectors
included."""

Split = Literal["rows", "columns", "kv_rows", "vocabulary", "experts", "replicated"]
"""What tensor parallelism does with a weight (outputs, inputs): by outputs, by inputs, by outputs
as far as there are KV heads, by tokens of the vocabulary, whole experts, or a copy a rank."""

FLOATS = ("F64", "F32", "F16", "BF16")
"""Dtypes of numbers that are not quantized, as safetensors names them."""


class PlannedTensor(NamedTuple):  # made six times as fast as a frozen dataclass, 91,991 times
    """One tensor; `dtype` as safetensors names it, `layer` None outside the blocks.

    `linear`: the module name of the linear whose weight this is, None for all else. Linears that
    engines fuse (q, k, v; gate, up) name each other, themselves included, in `fused`.
    `buffer`: in the files, and no parameter (DeepSeek-V3's routing correction).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    part: Part
    layer: int | None = None
    split: Split = "replicated"
    linear: str | None = None
    fused: tuple[str, ...] = ()
    buffer: bool = False


@dataclass(frozen=True)
class Inventory:
    """Every tensor of a model; `origin` says where the figures come from, for people.

    `uncounted`: fields of the config in which a further model lies whose tensors are not here.
    """

    tensors: tuple[PlannedTensor, ...]
    origin: Literal["safetensors headers", "config.json", "the model's class in transformers"]
    uncounted: tuple[str, ...] = ()
