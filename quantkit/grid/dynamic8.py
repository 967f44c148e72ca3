"""8-bit scales of scales: bitsandbytes' signed dynamic code book (arXiv 1511.04561) and its use."""

from functools import cache

import torch

from quantkit.core.scheme import NESTED_SIZE
from quantkit.grid.qtensor import DoubleQuant


@cache
def dynamic_book() -> torch.Tensor:
    """The 256 sorted values, float32, bit for bit those of bitsandbytes.

    Decade 10**(i-6) is cut into 2**i equal steps of linspace(0.1, 1), whose midpoints stand with
    both signs; 0 and 1 complete it.
    """
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1, dtype=torch.float32)
        middles = (10 ** (exponent - 6)) * ((edges[:-1] + edges[1:]) / 2.0)
        values += middles.tolist() + (-middles).tolist()
    return torch.tensor(sorted(values), dtype=torch.float32)


def nested_scales(nested: DoubleQuant) -> torch.Tensor:
    """The fp32 scales that `nested` stands for, with bitsandbytes' two roundings."""
    codes = nested.codes
    spread = nested.absmax.repeat_interleave(NESTED_SIZE)[: codes.numel()]
    return dynamic_book().to(codes.device)[codes.int()] * spread + nested.offset


def nested_of(scales: torch.Tensor) -> DoubleQuant:
    """8-bit codes of the scales' distances from their mean, 256 to an fp32 scale of their own.

    Bit for bit those of bitsandbytes 0.50 on a CPU, whose kernel looks the nearest of the book up
    at 65536 places of [-1, 1]; its CUDA kernel has no such places, and differs in a code or so of
    a thousand.
    """
    offset = scales.mean()
    blocks = torch.nn.functional.pad(scales - offset, (0, -scales.numel() % NESTED_SIZE))
    blocks = blocks.view(-1, NESTED_SIZE)
    absmax = blocks.abs().amax(1)
    scaled = blocks * (1 / absmax)[:, None]
    places = ((scaled + 1) * 0.5 * 65535 + 0.5).floor_() / 65535 * 2 - 1
    book = dynamic_book().to(scales.device)
    codes = torch.bucketize(places, (book[1:] + book[:-1]) / 2, out_int32=True)
    codes = torch.where(absmax[:, None] > 0, codes, 0)
    return DoubleQuant(codes.flatten()[: scales.numel()].to(torch.uint8), absmax, offset)
