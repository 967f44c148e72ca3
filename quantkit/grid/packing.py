"""Codes as checkpoints store them: bit streams in 32-bit words, two to a byte, AWQ's order.

Streams are handled as bytes, one strided slice for each code of the repeating pattern, so the
largest temporary is a uint8 tensor the size of the codes.
"""

from math import gcd

import torch

from quantkit.core.scheme import word_count

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def pack(codes: torch.Tensor, bits: int, dim: int = -1) -> torch.Tensor:
    """`codes` (uint8, below 2**bits) along `dim` as a dense little-endian bit stream, int32.

    Code i occupies the bits i*bits and up of the stream and may straddle two words. The last word
    is filled with zeros: the size of `dim` becomes ceil(size * bits / 32).
    """
    last = codes.movedim(dim, -1)
    size = last.shape[-1]
    stream = last.new_zeros((*last.shape[:-1], 4 * word_count(size, bits)))
    period, stride = _pattern(bits)
    for i in range(min(period, size)):
        piece = last[..., i::period]
        byte, shift = divmod(i * bits, 8)
        _merge(stream[..., byte::stride], piece << shift)
        if shift + bits > 8:
            _merge(stream[..., byte + 1 :: stride], piece >> (8 - shift))
    return stream.view(torch.int32).movedim(-1, dim).contiguous()


def unpack(words: torch.Tensor, bits: int, size: int, dim: int = -1) -> torch.Tensor:
    """The `size` uint8 codes along `dim` that `pack` made `words` of."""
    stream = words.movedim(dim, -1).contiguous().view(torch.uint8)
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
    """4-bit `codes` (outputs, n) as int32 words (n, outputs / 8), outputs in AWQ_ORDER."""
    eights = codes.view(-1, 8, codes.shape[1])
    words = torch.zeros_like(eights[:, 0], dtype=torch.int32)
    for i, output in enumerate(AWQ_ORDER):
        words |= eights[:, output].int() << (4 * i)
    return words.T.contiguous()


def unpack_awq(words: torch.Tensor) -> torch.Tensor:
    """The uint8 codes (outputs, n) that `pack_awq` made `words` of."""
    rows = words.T.contiguous()
    eights = rows.new_empty((rows.shape[0], 8, rows.shape[1]), dtype=torch.uint8)
    for i, output in enumerate(AWQ_ORDER):
        eights[:, output] = (rows >> (4 * i)) & 15
    return eights.view(-1, rows.shape[1])


def pack_nibbles(codes: torch.Tensor, *, high_first: bool) -> torch.Tensor:
    """uint8 (ceil(n/2),): two 4-bit codes of the flattened `codes` a byte, a last one alone."""
    flat = codes.flatten()
    packed = flat.new_zeros(-(-flat.numel() // 2))
    first, second = (4, 0) if high_first else (0, 4)
    packed |= flat[0::2] << first
    packed[: flat.numel() // 2] |= flat[1::2] << second
    return packed


def unpack_nibbles(packed: torch.Tensor, size: int, *, high_first: bool) -> torch.Tensor:
    """The `size` uint8 codes (flat) that `pack_nibbles` made `packed` of."""
    low, high = packed.flatten() & 15, packed.flatten() >> 4
    pairs = torch.stack((high, low) if high_first else (low, high), dim=1)
    return pairs.flatten()[:size].contiguous()


def _pattern(bits: int) -> tuple[int, int]:
    """After how many codes, and how many bytes, the positions in the bytes repeat."""
    if not 1 <= bits <= 8:
        raise ValueError(f"codes of {bits} bits cannot be packed, only of 1 to 8")
    common = gcd(bits, 8)
    return 8 // common, bits // common


def _merge(stream: torch.Tensor, piece: torch.Tensor) -> None:
    # At the end the stream may reach beyond the codes, or lack a byte for a code's empty half.
    stream[..., : piece.shape[-1]] |= piece[..., : stream.shape[-1]]
