"""How far a quantized weight may be from the original one: what its scheme explains."""

from dataclasses import replace

import torch

from quantkit.core.grid import rounding_of
from quantkit.core.scheme import Scheme
from quantkit.grid.nearest import nearest
from quantkit.grid.threads import one_thread

MOST = 0.5
"""Squared relative error that nothing explains; a weight of zeros has 1."""
EQUAL = 1e-4
"""Squared relative error of a tensor that is only stored in another dtype."""
LEAST_GAIN = 0.67
"""The smallest factor by which clipping shrinks a weight."""
LOST = 0.8
"""Squared relative error of a group of weights that no rounding to 3 bits or more gives."""
LEAST_GROUP = 16
ROWS = 256
"""Rows of a weight from which its rounding error is estimated."""


def too_far(
    weight: torch.Tensor, original: torch.Tensor, scheme: Scheme | None, slack: float
) -> str | None:
    """A sentence where a weight, fp32 (out, in), is further off than its scheme explains."""
    error = float(relative(weight, original))
    limit = EQUAL if scheme is None else min(slack * rounding_error(original, scheme), MOST)
    if not error <= limit:
        return (
            f"is {error**0.5:.1%} away from the original, of which its bits explain "
            f"{limit**0.5:.1%} at most"
        )
    gain = float((weight * original).sum() / original.square().sum().clamp_min(1e-30))
    if not LEAST_GAIN < gain < 1 / LEAST_GAIN:
        return f"is {gain:.2f} times the original"
    if scheme is None or scheme.rows != 1 or scheme.bits < 3 or scheme.grid == "nf4":
        return None
    size = scheme.group_size or weight.shape[1]
    if weight.shape[1] % size or size < LEAST_GROUP:
        return None
    groups = (len(weight), -1, size)
    off = (weight - original).view(groups).square().sum(-1)
    lost = int((off > LOST * original.view(groups).square().sum(-1)).sum())
    if not lost:
        return None
    return f"has {lost:,} of {off.numel():,} groups that are nothing like the original's"


@one_thread()
def rounding_error(original: torch.Tensor, scheme: Scheme) -> float:
    """The squared relative error of rounding to nearest, with scales that span their groups."""
    sample = original
    if scheme.grid == "nf4":  # its blocks run over the flattened weight
        size = scheme.group_size or original.numel()
        sample = original.flatten()[: original.numel() // size * size].view(-1, size)
    if scheme.rows == 1 and len(sample) > ROWS:
        sample = sample[:: -(-len(sample) // ROWS)].contiguous()
    dtype = getattr(torch, scheme.scale_dtype("bfloat16"))
    rounded = nearest(sample, None, scheme, rounding_of(scheme, dtype, [sample]))
    if scheme.grid == "nf4":
        rounded = replace(rounded, scales=rounded.scales.flatten())
    return max(float(relative(rounded.dequantize(), sample)), EQUAL / 10)


def relative(weight: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """|weight - original|^2 / |original|^2, a scalar."""
    size = original.square().sum().clamp_min(1e-30)
    return (weight - original).square().sum() / size


def row_factors(weight: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """The factor of each row (rows,) by which the original is nearest to a weight."""
    size = original.square().sum(1).clamp_min(1e-30)
    return (weight * original).sum(1) / size
