"""The tensors of a checkpoint as planning sees them: shape, bytes, part, and how ranks share them.

There are two ways to one: the headers of the files, and, without files, the config alone. The
second knows that the experts of a layer are alike, and has one row for all of them.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
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
    `buffer`: in the files, and no parameter (DeepSeek-V3's routing correction). `alike`: experts
    of a layer that have such a tensor, where this one, the first's, stands for all of them.
    `merged`: the files hold it in one tensor with others.
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
    alike: int = 1
    merged: bool = False


@dataclass(frozen=True)
class Inventory:
    """Every tensor of a model; `origin` says where the figures come from, for people.

    `rows`: the tensors, those of a layer's experts as the first one's.
    `uncounted`: fields of the config in which a further model lies whose tensors are not here.
    """

    rows: tuple[PlannedTensor, ...]
    origin: Literal["safetensors headers", "config.json", "the model's class in transformers"]
    uncounted: tuple[str, ...] = ()

    @cached_property
    def tensors(self) -> tuple[PlannedTensor, ...]:
        """Every tensor under its own name; with 70,000 of experts that takes half a second."""
        return tuple(one_by_one(self.rows))

    def told_apart(self, patterns: Iterable[str]) -> "Inventory":
        """The same tensors, with experts one by one where a pattern may hold for some of them.

        A glob of `*` and words without numbers holds for all or for none.
        """
        if any(_TELLS_APART.search(_LAYER.sub("", pattern)) for pattern in patterns):
            return Inventory(self.tensors, self.origin, self.uncounted)
        return self


_LAYER = re.compile(r"\blayers\.\d+")
_TELLS_APART = re.compile(r"[\d?\[]")
_FIRST = ".experts.0."


def one_by_one(rows: Iterable[PlannedTensor]) -> Iterator[PlannedTensor]:
    """The tensors that rows stand for, those of an expert together."""
    for (experts, _), group in groupby(rows, key=lambda row: (row.alike, row.layer)):
        members = tuple(group)
        if experts == 1:
            yield from members
        else:
            yield from (_of_expert(row, i) for i in range(experts) for row in members)


def _of_expert(row: PlannedTensor, index: int) -> PlannedTensor:
    own = f".experts.{index}."
    return row._replace(
        name=row.name.replace(_FIRST, own),
        linear=row.linear and row.linear.replace(_FIRST, own),
        fused=tuple(name.replace(_FIRST, own) for name in row.fused),
        alike=1,
    )
