"""Double quantization: scales as 8-bit codes of bitsandbytes' signed dynamic code book.

Double quantization is from QLoRA (arXiv 2305.14314, section 3), the dynamic data type from Dettmers
(arXiv 1511.04561). QLoRA speaks of 8-bit floats; what bitsandbytes stores is this code book.
"""

from functools import cache

import torch

from quantkit.core.scheme import NESTED_SIZE
from quantkit.grid.qtensor import DoubleQuant


@cache
def dynamic_book() -> torch.Tensor:
    """The code book: float32 (256,), ascending, bit-identical to bitsandbytes' dynamic map.

    Decade 10**(i-6) holds the midpoints of 2**i equal intervals of linspace(0.1, 1), with both
    signs; 0 and 1 complete it (`create_dynamic_map` in bitsandbytes/functional.py). The tensor is
    cached: do not modify it.
    """
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1, dtype=torch.float32)
        middles = (10 ** (exponent - 6)) * ((edges[:-1] + edges[1:]) / 2.0)
        values += middles.tolist() + (-middles).tolist()
    return torch.tensor(sorted(values), dtype=torch.float32)


def nested_scales(nested: DoubleQuant) -> torch.Tensor:
    """Dequantized scales, fp32 (blocks,), of `nested`.

    The product and the sum are rounded separately, as in bitsandbytes.
    """
    codes = nested.codes
    spread = nested.absmax.repeat_interleave(NESTED_SIZE)[: codes.numel()]
    return dynamic_book().to(codes.device)[codes.int()] * spread + nested.offset


def nested_of(scales: torch.Tensor) -> DoubleQuant:
    """8-bit codes of `scales`, fp32 (blocks,): offsets from their mean, one fp32 absmax per 256.

    Bit-identical to bitsandbytes 0.50 on CPU, whose kernel first rounds a value to one of 65536
    positions in [-1, 1] and then looks its code up. The CUDA kernel compares exact values; about
    one code in a thousand differs.
    """
    offset = scales.mean()
    blocks = torch.nn.functional.pad(scales - offset, (0, -scales.numel() % NESTED_SIZE))
    blocks = blocks.view(-1, NESTED_SIZE)
    absmax = blocks.abs().amax(1)
    scaled = blocks * (1 / absmax)[:, None]  # NaN where absmax is 0: those codes are set below
    places = ((scaled + 1) * 0.5 * 65535 + 0.5).floor_() / 65535 * 2 - 1
    book = dynamic_book().to(scales.device)
    codes = torch.bucketize(places, (book[1:] + book[:-1]) / 2, out_int32=True)
    codes = torch.where(absmax[:, None] > 0, codes, 0)
    return DoubleQuant(codes.flatten()[: scales.numel()].to(torch.uint8), absmax, offset)
