"""A quantization scheme: grid, bits and groups of a weight, and the dtype of its activation."""

from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any, Literal

Activation = Literal["int8-token", "fp8-token", "fp8-tensor", "fp8-group128", "nvfp4"]
KVCache = Literal["fp8-tensor"]
"""Keys and values of an attention in e4m3, with one scale each."""

PRODUCTS = {
    "int8-token": "int8",
    **dict.fromkeys(("fp8-token", "fp8-tensor", "fp8-group128"), "fp8"),
    "nvfp4": "fp4",
}
"""Activation -> the numbers that are multiplied, as GPUs' rates name them."""
GROUP_SIZES = (128, 64, 32)
FLOAT_GROUPS = (16, 32)
"""Weights that share a scale in NVFP4, and in MXFP4 and MXFP8."""
INTEGERS = tuple(("int", bits) for bits in (4, 8, 3, 2, 5, 6, 7))
"""The integer grids, as (grid, bits), that formats hold."""
NESTED_SIZE = 256
"""Scales of NF4 that share one fp32 scale of their own under double quantization."""


@dataclass(frozen=True)
class Scheme:
    """Grid, bits, group size and symmetry of a quantized linear.

    `grid` is an entry of `quantkit/grids`. `group_size` is the number of consecutive inputs that
    share a scale; None is "channel", one scale for a whole output row. NF4 groups run over the
    row-major flattened weight. `rows` output rows share their scales; None: all of them.
    `activation` is the quantization of the input at run time; None leaves it unquantized.
    `double_quant` stores the scales of NF4 in 8 bits themselves (QLoRA, arXiv 2305.14314, 3).
    `rounded_to` is the grid whose numbers weights are rounded to, where `grid` only stores them
    (see `stored`); methods and tables go by it, formats and engines by `grid`.
    """

    grid: str = "int"
    bits: int = 4
    group_size: int | None = 64
    symmetric: bool = True
    activation: Activation | None = None
    double_quant: bool = False
    rows: int | None = 1
    rounded_to: str = ""

    @property
    def kind(self) -> Any:
        """The grid that weights are rounded to, a `core.grid.Grid`; recipes and formats know it."""
        return _entry(self.rounded_to or self.grid)

    @property
    def storage(self) -> Any:
        """The grid that says what stored codes and scales stand for, a `core.grid.Grid`."""
        return _entry(self.grid)

    def stored(self) -> "Scheme":
        """The scheme by the grid whose codes and scales hold its numbers (`Grid.stored_as`)."""
        holder: str = self.kind.stored_as
        return replace(self, grid=holder, rounded_to=self.kind.name) if holder else self

    @property
    def read(self) -> "Scheme":
        """What a reader of the file finds: not what stored codes were rounded to."""
        return replace(self, rounded_to="") if self.rounded_to else self

    def label(self) -> str:
        """Short name for tables: `W4 g64 sym`, `NF4 g64 double`, `W8A8 channel sym`."""
        found: str = self.kind.label(self)
        return found

    @property
    def spread(self) -> str:
        """What shares a scale: `g64`, `channel`, `128x128`, `tensor`."""
        if self.rows == 1:
            return "channel" if self.group_size is None else f"g{self.group_size}"
        return "tensor" if self.rows is None else f"{self.rows}x{self.group_size}"

    @property
    def products(self) -> str:
        """The numbers that are multiplied as the scheme states it; `bf16` stands for 16 bits."""
        return PRODUCTS[self.activation] if self.activation else "bf16"

    @property
    def block(self) -> tuple[int, int] | None:
        """Rows and inputs of a block of weights that share a scale; None where all inputs do."""
        return (self.rows, self.group_size) if self.rows and self.group_size else None

    def contradiction(self) -> str | None:
        """A sentence that states which fields contradict each other; None if none do."""
        if self.double_quant and self.grid != "nf4":
            return "double quantization applies to NF4 only; try: --method nf4"
        fault: str | None = self.kind.contradiction(self)
        return fault

    def groups(self, in_features: int) -> int:
        """Number of scales along one row of `in_features` inputs; the last group may be cut."""
        return 1 if self.group_size is None else -(-in_features // self.group_size)

    def scale_rows(self, out_features: int) -> int:
        """Number of scales along the outputs."""
        return 1 if self.rows is None else -(-out_features // self.rows)

    def scale_count(self, out_features: int, in_features: int) -> int:
        """Number of scales of a weight."""
        if self.storage.flattened:
            return -(-out_features * in_features // (self.group_size or out_features * in_features))
        return self.scale_rows(out_features) * self.groups(in_features)

    def scale_dtype(self, model: str) -> str:
        """The dtype in which a format stores scales, for a `model` of a dtype."""
        found: str = self.storage.scale_dtype(self, model)
        return found


@cache  # a plan of a large model asks for its schemes' grids thousands of times
def _entry(grid: str) -> Any:
    return import_module(f"quantkit.grids.{grid.replace('-', '_')}").GRID


def word_count(size: int, bits: int) -> int:
    """Number of 32-bit words that hold `size` codes: ceil(size * bits / 32)."""
    return -(-size * bits // 32)
