"""Packed codes as checkpoints store them: bit streams in int32 words, nibbles, AWQ's order.

Streams are built as bytes, with one strided slice for each code of the repeating pattern. The
largest temporary is a uint8 tensor of the size of the codes; shifting int32 words would take four
times as much.
"""

from math import gcd

import torch

from quantkit.core.scheme import word_count

# Nibble i of a word holds output AWQ_ORDER[i]. AWQ's GEMM kernel converts nibbles i and i + 4 to
# one fp16 pair (after FasterTransformer), so neighbouring outputs lie four nibbles apart.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def pack(codes: torch.Tensor, bits: int, dim: int = -1) -> torch.Tensor:
    """Dense little-endian bit stream, int32, of `codes` (uint8, below 2**bits) along `dim`.

    Code i occupies bits i*bits .. i*bits + bits - 1 of the stream and may straddle two words. The
    last word is padded with zero bits: size n of `dim` becomes ceil(n * bits / 32). This is the
    layout of GPTQ and of compressed-tensors' `pack-quantized`.

    Raises:
        ValueError: `bits` is not in 1 .. 8.
    """
    last = codes.movedim(dim, -1)
    size = last.shape[-1]
    stream = last.new_zeros((*last.shape[:-1], 4 * word_count(size, bits)))
    period, stride = _pattern(bits)
    for i in range(min(period, size)):
        piece = last[..., i::period]
        byte, shift = divmod(i * bits, 8)
        # uint8 drops the bits shifted out; the next byte takes them.
        _merge(stream[..., byte::stride], piece << shift)
        if shift + bits > 8:
            _merge(stream[..., byte + 1 :: stride], piece >> (8 - shift))
    # The view assumes a little-endian machine, as does the file format.
    return stream.view(torch.int32).movedim(-1, dim).contiguous()


def unpack(words: torch.Tensor, bits: int, size: int, dim: int = -1) -> torch.Tensor:
    """The uint8 codes that `pack` packed into int32 `words`.

    Size ceil(size * bits / 32) of `dim` becomes `size`; the other axes of any shape remain.

    Raises:
        ValueError: `bits` is not in 1 .. 8.
    """
    last = words.movedim(dim, -1).contiguous()
    # flat first: a dimension of one word may have any stride, which a view as bytes refuses
    stream = last.view(-1).view(torch.uint8).view(*last.shape[:-1], 4 * last.shape[-1])
    codes = stream.new_empty((*stream.shape[:-1], size))
    period, stride = _pattern(bits)
    for i in range(min(period, size)):
        target = codes[..., i::period]
        count = target.shape[-1]
        byte, shift = divmod(i * bits, 8)
        piece = stream[..., byte::stride][..., :count] >> shift
        if shift + bits > 8:
            piece |= stream[..., byte + 1 :: stride][..., :count] << (8 - shift)
        target.copy_(piece.bitwise_and_((1 << bits) - 1))
    return codes.movedim(-1, dim).contiguous()


def pack_awq(codes: torch.Tensor) -> torch.Tensor:
    """int32 words (n, outputs / 8) of 4-bit `codes`, uint8 (outputs, n), in AWQ_ORDER."""
    eights = codes.view(-1, 8, codes.shape[1])
    words = torch.zeros_like(eights[:, 0], dtype=torch.int32)
    for i, output in enumerate(AWQ_ORDER):
        words |= eights[:, output].int() << (4 * i)
    return words.T.contiguous()


def unpack_awq(words: torch.Tensor) -> torch.Tensor:
    """uint8 codes (outputs, n) of int32 `words` (n, outputs / 8) from `pack_awq`."""
    rows = words.T.contiguous()
    eights = rows.new_empty((rows.shape[0], 8, rows.shape[1]), dtype=torch.uint8)
    for i, output in enumerate(AWQ_ORDER):
        eights[:, output] = (rows >> (4 * i)) & 15  # >> copies the sign bit; the mask removes it
    return eights.view(-1, rows.shape[1])


def pack_nibbles(codes: torch.Tensor, *, high_first: bool) -> torch.Tensor:
    """uint8 (ceil(n/2),): two 4-bit codes per byte of the n flattened `codes` (uint8).

    bitsandbytes puts the first code in the high nibble, compressed-tensors' fp4 in the low one.
    With odd n the other nibble of the last byte is 0.
    """
    flat = codes.flatten()
    packed = flat.new_zeros(-(-flat.numel() // 2))
    first, second = (4, 0) if high_first else (0, 4)
    packed |= flat[0::2] << first
    packed[: flat.numel() // 2] |= flat[1::2] << second
    return packed


def unpack_nibbles(packed: torch.Tensor, size: int, *, high_first: bool) -> torch.Tensor:
    """uint8 (size,): the codes that `pack_nibbles` packed into `packed`, uint8 (ceil(size/2),)."""
    low, high = packed.flatten() & 15, packed.flatten() >> 4
    pairs = torch.stack((high, low) if high_first else (low, high), dim=1)
    return pairs.flatten()[:size].contiguous()


def _pattern(bits: int) -> tuple[int, int]:
    """Numbers of codes and of bytes after which the bit positions repeat: 8 and 3 for 3 bits."""
    if not 1 <= bits <= 8:
        raise ValueError(f"cannot pack codes of {bits} bits; supported: 1 to 8")
    common = gcd(bits, 8)
    return 8 // common, bits // common


def _merge(stream: torch.Tensor, piece: torch.Tensor) -> None:
    """ORs `piece` into `stream`, in place; both uint8 (..., n), cut to the shorter one."""
    # The stream may be longer than the codes (padding), or end before a last code's second byte,
    # which then holds no bits.
    stream[..., : piece.shape[-1]] |= piece[..., : stream.shape[-1]]


def pack_pairs(codes: torch.Tensor) -> torch.Tensor:
    """Two 4-bit codes a byte, the first in the low bits: uint8 (.., n) -> (.., n / 2)."""
    return codes[..., ::2] | (codes[..., 1::2] << 4)


def unpack_pairs(pairs: torch.Tensor) -> torch.Tensor:
    """The codes that `pack_pairs` packed: uint8 (.., n / 2) -> (.., n)."""
    return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)
