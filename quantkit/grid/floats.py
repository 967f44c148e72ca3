"""Values of weights in 8- and 4-bit floats with scales, as checkpoints store them.

e4m3 and e5m2 are torch's own dtypes. e2m1 (OCP Microscaling Formats 1.0, 5.3.3) is two codes in a
byte, the first in the low bits. An e8m0 scale is a power of two, 2^(byte - 127), also where a file
calls it uint8.
"""

import torch

from quantkit.core.errors import InputError
from quantkit.core.scheme import FLOAT_GROUPS
from quantkit.grid.minifloat import FOUR
from quantkit.grid.packing import unpack_pairs

E8M0_BIAS = 127
ROWS = 1024
"""Rows that are in fp32 at a time."""
Block = tuple[int, int]
"""Rows and columns that share a scale."""


def dequantize_floats(
    codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype, declared: Block | None = None
) -> torch.Tensor:
    """The weight (out, in) in `dtype`, rounded once from fp32.

    `codes` are 8-bit floats (out, in), or bytes (out, in / 2) with two e2m1 codes each. `scales`,
    fp32, are one, one a row, or one a block (rows, columns) of the `declared` size, by which the
    last one may be cut. Even blocks need no such size if it is a power of two.

    Raises:
        InputError: the scales do not divide the weight into such blocks.
    """
    outputs, width = codes.shape
    inputs = width * (2 if codes.dtype in (torch.uint8, torch.int8) else 1)
    lines, columns = _by_row(scales, outputs, inputs, declared)
    weight = torch.empty(outputs, inputs, dtype=dtype)
    whole = inputs // columns
    for start in range(0, outputs, ROWS):
        at = slice(start, start + ROWS)
        values, factors = values_of(codes[at]), lines[at]
        even = values[:, : whole * columns].view(len(values), whole, columns)
        even.mul_(factors[:, :whole, None])
        values[:, whole * columns :].mul_(factors[:, whole:])  # of the block that is cut
        weight[at] = values
    return weight


def values_of(codes: torch.Tensor) -> torch.Tensor:
    """fp32 values of 8-bit floats (.., n), or of bytes with two e2m1 codes each: (.., 2 n)."""
    if codes.dtype not in (torch.uint8, torch.int8):
        return codes.float()
    pairs = codes.contiguous().view(torch.uint8)
    return FOUR.values(unpack_pairs(pairs))


def scales_of(stored: torch.Tensor) -> torch.Tensor:
    """fp32 scales of any shape, from floats or from the exponents of e8m0 as bytes."""
    if stored.dtype is torch.uint8:
        return torch.exp2(stored.float() - E8M0_BIAS)
    return stored.float()


def _by_row(
    scales: torch.Tensor, outputs: int, inputs: int, declared: Block | None
) -> tuple[torch.Tensor, int]:
    """The scales of each row (out, blocks), a view where they are the same; columns of a block."""
    if scales.numel() == 1:
        return scales.reshape(1, 1).expand(outputs, 1), inputs
    grid = scales[:, None] if scales.ndim == 1 else scales
    counts = tuple(grid.shape) if grid.ndim == 2 else (0, 0)
    rows = _block(outputs, counts[0], declared and declared[0])
    columns = _block(inputs, counts[1], declared and declared[1])
    if not rows or not columns:
        raise InputError(
            f"scales of shape {tuple(scales.shape)} for a weight of shape {(outputs, inputs)}",
            why=f"declared is a block of {declared}" if declared else "no block is declared",
            hint="use the config.json that belongs to these weights",
        )
    return grid.repeat_interleave(rows, 0)[:outputs], columns


def _block(size: int, count: int, declared: int | None) -> int:
    """The size of a block of which `count` cover `size`; 0 where there is none.

    Three cut blocks of 128 cover 300 rows, and so would three of 100, which nobody writes.
    """
    if declared and -(-size // declared) == count:
        return declared
    even = size // count if count and size % count == 0 else 0
    known = even in (1, size, *FLOAT_GROUPS) if declared else even == size or even & (even - 1) == 0
    return even if known else 0


def require_numbers(tensor: torch.Tensor, name: str) -> None:
    """Check that a tensor of floats, or of exponents in uint8, has no NaN and no infinity.

    Raises:
        InputError: it has.
    """
    if tensor.dtype is torch.uint8:
        odd = tensor == 255
    elif tensor.dtype is torch.float8_e4m3fn:
        odd = (tensor.view(torch.uint8) & 127) == 127
    elif tensor.dtype.itemsize == 1:  # torch's `isfinite` knows no e8m0
        odd = ~tensor.float().isfinite()
    else:
        odd = ~tensor.isfinite()
    _refuse(odd, name, "has values that are no numbers")


def require_scales(scales: torch.Tensor, name: str, *, positive: bool = False) -> None:
    """Check that scales, as `require_numbers` takes them, are numbers from 0 up, or `positive`.

    Raises:
        InputError: they are not.
    """
    require_numbers(scales, name)
    if scales.dtype is not torch.uint8:
        values = scales.float()
        _refuse(values < 0, name, "has scales below 0")
        if positive:
            _refuse(values == 0, name, "has a scale of 0")


def require_spanned(
    codes: torch.Tensor, scales: torch.Tensor, name: str, declared: Block | None = None
) -> None:
    """Check that scales of 0 lie over zeros only; arguments as of `dequantize_floats`.

    Scales of 8 bits are left out: the smallest become 0 as they are rounded.

    Raises:
        InputError: numbers would be lost.
    """
    zeros = (scales == 0).float()
    if scales.dtype.itemsize > 1 and bool(zeros.any()):
        lost = dequantize_floats(codes, zeros, torch.bfloat16, declared)
        _refuse(lost != 0, name, "has scales of 0 over numbers that are not")


def _refuse(odd: torch.Tensor, name: str, fault: str) -> None:
    if bool(odd.any()):
        raise InputError(f"`{name}` {fault}", hint="fetch or make the artifact again")
