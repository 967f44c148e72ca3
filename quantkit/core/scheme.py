"""A quantization scheme: grid, bits and groups of a weight, and the dtype of its activation."""

from dataclasses import dataclass
from typing import Literal

GridName = Literal["int", "nf4"]
Activation = Literal["int8-token"]

GROUP_SIZES = (128, 64, 32)
FLOAT_GROUPS = (16, 32)
"""Weights that share a scale in NVFP4, and in MXFP4 and MXFP8."""
INTEGERS: tuple[tuple[GridName, int], ...] = (("int", 4), ("int", 8), ("int", 3), ("int", 2))
"""The integer grids, as (grid, bits), that formats hold."""
NESTED_SIZE = 256
"""Scales of NF4 that share one fp32 scale of their own under double quantization."""


@dataclass(frozen=True)
class Scheme:
    """Grid, bits, group size and symmetry of a quantized linear.

    `group_size` is the number of consecutive inputs that share a scale; None is "channel", one
    scale for a whole output row. NF4 groups run over the row-major flattened weight.
    `activation` is the quantization of the input at run time; None leaves it unquantized.
    `double_quant` stores the scales of NF4 in 8 bits themselves (QLoRA, arXiv 2305.14314, 3).
    """

    grid: GridName = "int"
    bits: int = 4
    group_size: int | None = 64
    symmetric: bool = True
    activation: Activation | None = None
    double_quant: bool = False

    def label(self) -> str:
        """Short name for tables: `W4 g64 sym`, `NF4 g64 double`, `W8A8 channel sym`."""
        width = "NF4" if self.grid == "nf4" else f"W{self.bits}"
        if self.activation:
            width += "A8"
        group = "channel" if self.group_size is None else f"g{self.group_size}"
        if self.grid == "nf4":
            return f"{width} {group}" + (" double" if self.double_quant else "")
        return f"{width} {group} {'sym' if self.symmetric else 'asym'}"

    def contradiction(self) -> str | None:
        """A sentence that states which fields contradict each other; None if none do."""
        if self.grid == "nf4" and self.activation:
            return "NF4 does not support 8-bit activations; try: --method smoothquant"
        if self.grid == "nf4" and not self.symmetric:
            return "NF4 has no zero point; try: --symmetric"
        if self.grid != "nf4" and self.double_quant:
            return "double quantization applies to NF4 only; try: --method nf4"
        return None

    def groups(self, in_features: int) -> int:
        """Number of scales along one row of `in_features` inputs (integer grids)."""
        return 1 if self.group_size is None else in_features // self.group_size

    def scale_dtype(self, model: str) -> str:
        """The dtype in which a format stores scales: that of the `model` if it has 16 bits.

        Engines cast weight-only scales to the serving dtype, and keep those of W8A8 and NF4 in
        fp32.
        """
        if self.activation is not None or self.grid == "nf4":
            return "float32"
        return model if model in ("bfloat16", "float16") else "float16"


def word_count(size: int, bits: int) -> int:
    """Number of 32-bit words that hold `size` codes: ceil(size * bits / 32)."""
    return -(-size * bits // 32)
