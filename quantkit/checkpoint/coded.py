"""Dense tensors that a checkpoint stores in codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Coded:
    """A dense tensor, and the stored ones that it is computed from.

    `parts`: the stored tensors by what they are, the codes first. `shape`: of the dense tensor.
    `decode`: those tensors and a dtype, as safetensors names it -> the dense one; of a stack
    (items, ..) one item at a time.
    """

    parts: Mapping[str, str]
    shape: tuple[int, ...]
    decode: Callable[[Mapping[str, torch.Tensor], str], torch.Tensor]


@dataclass(frozen=True)
class Coding:
    """How a checkpoint is quantized: its coded tensors, by the names of the dense ones.

    `dropped` names stored tensors that only the quantization used, `label` says what the weights
    are stored in, for people.
    """

    tensors: Mapping[str, Coded] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    label: str = ""

    @cached_property
    def parts(self) -> set[str]:
        """The stored tensors that dense ones are computed from."""
        return {name for each in self.tensors.values() for name in each.parts.values()}
