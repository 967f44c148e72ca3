"""8- and 4-bit floats with scales decode to what their formats say."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.core.errors import InputError
from quantkit.grid.floats import dequantize_floats, scales_of, values_of


def test_two_codes_lie_in_a_byte_the_first_in_the_low_bits() -> None:
    assert values_of(torch.tensor([[0x72, 0xF9]], dtype=torch.uint8)).tolist() == [
        [1.0, 6.0, -0.5, -6.0]
    ]


def test_every_4_bit_code_is_the_float_that_its_bits_say() -> None:
    """Sign, two bits of exponent with bias 1, one of mantissa."""
    found = values_of(torch.arange(16, dtype=torch.uint8)[:, None])[:, 0].tolist()
    for code, value in enumerate(found):
        sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
        size = 2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2
        assert value == (-size if sign else size)


def test_scales_of_bytes_are_powers_of_two_as_torchs_e8m0() -> None:
    exponents = torch.arange(1, 255, dtype=torch.uint8)
    assert torch.equal(scales_of(exponents), exponents.view(torch.float8_e8m0fnu).float())


@given(
    outputs=st.integers(1, 300),
    inputs=st.integers(1, 300),
    block=st.tuples(st.integers(1, 130), st.integers(1, 130)),
)
def test_a_block_that_the_weight_cuts_has_its_scale(
    outputs: int, inputs: int, block: tuple[int, int]
) -> None:
    """Each weight against the scale that its row and column name."""
    codes = torch.randn(outputs, inputs).to(torch.float8_e4m3fn)
    rows, columns = -(-outputs // block[0]), -(-inputs // block[1])
    scales = torch.rand(rows, columns) + 0.5
    at = (torch.arange(outputs)[:, None] // block[0], torch.arange(inputs) // block[1])
    expected = codes.float() * scales[at]
    assert torch.equal(dequantize_floats(codes, scales, torch.float32, block), expected)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (8,), (8, 1), (1, 8), (2, 4), (8, 2)])
def test_scales_of_even_blocks_need_no_declared_size(shape: tuple[int, ...]) -> None:
    codes, scales = torch.randn(8, 8).to(torch.float8_e4m3fn), torch.rand(shape) + 0.5
    grid = scales.reshape(-1, 1) if scales.ndim < 2 else scales
    full = grid.repeat_interleave(8 // grid.shape[0], 0).repeat_interleave(8 // grid.shape[1], 1)
    found = dequantize_floats(codes, scales, torch.float32)
    assert torch.equal(found, codes.float() * full)


@pytest.mark.parametrize("shape", [(4, 1), (7,), (1, 3), (2, 2, 2), (0, 8)])
def test_scales_that_do_not_divide_the_weight_are_told(shape: tuple[int, ...]) -> None:
    codes = torch.zeros(6, 8, dtype=torch.float8_e4m3fn)
    with pytest.raises(InputError, match="for a weight of shape"):
        dequantize_floats(codes, torch.ones(shape), torch.float32)


@pytest.mark.parametrize("declared", [None, (128, 64)])
def test_even_blocks_of_a_size_that_nobody_writes_are_told(
    declared: tuple[int, int] | None,
) -> None:
    """300 rows in blocks of 128 have three scales; three blocks of 100 would be other weights."""
    codes = torch.zeros(300, 256, dtype=torch.float8_e4m3fn)
    with pytest.raises(InputError, match="for a weight of shape"):
        dequantize_floats(codes, torch.ones(3, 2), torch.float32, declared)
