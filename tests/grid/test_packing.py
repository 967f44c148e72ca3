import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.core.scheme import word_count
from quantkit.grid.packing import (
    pack,
    pack_awq,
    pack_nibbles,
    unpack,
    unpack_awq,
    unpack_nibbles,
)


def words(*hexadecimal: int) -> torch.Tensor:
    return torch.tensor([w - (w >> 31 << 32) for w in hexadecimal], dtype=torch.int32)


def codes_of(bits: int, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 1 << bits, shape, generator=draw, dtype=torch.uint8)


@given(bits=st.integers(1, 8), size=st.integers(1, 200), seed=st.integers(0, 9))
@settings(deadline=None)
def test_a_row_is_one_long_little_endian_number(bits: int, size: int, seed: int) -> None:
    codes = codes_of(bits, (size,), seed)
    packed = pack(codes, bits)
    number = sum(int(code) << (i * bits) for i, code in enumerate(codes))
    assert number == sum((int(w) & 0xFFFFFFFF) << (32 * i) for i, w in enumerate(packed))
    assert packed.shape == (word_count(size, bits),)


@given(
    bits=st.integers(1, 8),
    shape=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    data=st.data(),
)
@settings(deadline=None)
def test_unpack_is_the_inverse_along_any_dim(
    bits: int, shape: list[int], data: st.DataObject
) -> None:
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    codes = codes_of(bits, tuple(shape))
    packed = pack(codes, bits, dim)
    assert packed.dtype == torch.int32
    assert packed.is_contiguous()
    assert torch.equal(unpack(packed, bits, shape[dim], dim), codes)


@given(bits=st.integers(1, 8), periods=st.integers(1, 4), seed=st.integers(0, 9))
@settings(deadline=None)
def test_pack_is_the_inverse_of_unpack_on_full_words(bits: int, periods: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    full = torch.randint(-(2**31), 2**31, (3, bits * periods), generator=draw).int()
    assert torch.equal(pack(unpack(full, bits, 32 * periods), bits), full)


def test_transposed_views_pack_as_their_copies() -> None:
    codes = codes_of(3, (64, 96))
    assert torch.equal(pack(codes.T, 3), pack(codes.T.contiguous(), 3))
    assert torch.equal(unpack(pack(codes, 3, 0).T.contiguous().T, 3, 64, 0), codes)


@pytest.mark.parametrize(
    ("bits", "codes", "expected"),
    [
        (4, list(range(8)), words(0x76543210)),
        (8, [0, 1, 2, 255], words(0xFF020100)),
        (3, list(range(8)) * 4, words(0x88FAC688, 0xC688FAC6, 0xFAC688FA)),
        (4, [8] * 8, words(0x88888888)),
        (4, [7] * 8, words(0x77777777)),
        (2, [1] * 16, words(0x55555555)),
        (3, [3] * 32, words(0xDB6DB6DB, 0xB6DB6DB6, 0x6DB6DB6D)),
        (8, [127] * 4, words(0x7F7F7F7F)),
    ],
)
def test_words_that_engines_read(bits: int, codes: list[int], expected: torch.Tensor) -> None:
    assert torch.equal(pack(torch.tensor(codes, dtype=torch.uint8), bits), expected)


@given(eights=st.integers(1, 5), inputs=st.integers(1, 40), seed=st.integers(0, 9))
@settings(deadline=None)
def test_awq_words_come_back(eights: int, inputs: int, seed: int) -> None:
    codes = codes_of(4, (8 * eights, inputs), seed)
    packed = pack_awq(codes)
    assert packed.shape == (inputs, eights)
    assert torch.equal(unpack_awq(packed), codes)


def test_awq_order() -> None:
    assert torch.equal(
        pack_awq(torch.arange(8, dtype=torch.uint8)[:, None]), words(0x75316420)[None]
    )


def test_nibbles() -> None:
    codes = torch.arange(4, dtype=torch.uint8)
    assert pack_nibbles(codes, high_first=False).tolist() == [16, 50]
    assert pack_nibbles(codes, high_first=True).tolist() == [1, 35]


@given(size=st.integers(0, 41), high_first=st.booleans())
@settings(deadline=None)
def test_nibbles_come_back(size: int, high_first: bool) -> None:
    codes = codes_of(4, (size,))
    packed = pack_nibbles(codes, high_first=high_first)
    assert packed.numel() == -(-size // 2)
    assert torch.equal(unpack_nibbles(packed, size, high_first=high_first), codes)


@pytest.mark.parametrize("bits", [0, 9])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="1 to 8"):
        pack(torch.zeros(8, dtype=torch.uint8), bits)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_single_word_is_unpacked_along_either_dimension(bits: int, dim: int) -> None:
    """Such a tensor counts as contiguous whatever its strides are."""
    count = 32 // bits
    shape = (count, 7) if dim == 0 else (7, count)
    codes = torch.randint(0, 2**bits, shape, dtype=torch.uint8)
    assert torch.equal(unpack(pack(codes, bits, dim=dim), bits, count, dim=dim), codes)
