"""Weights are numbers: what is not one is told by its name, before anything computes with it."""

import torch

from quantkit.core.errors import IntegrityError


def require_finite(name: str, tensor: torch.Tensor) -> None:
    """Check that `tensor`, of any shape and dtype, contains neither NaN nor Inf.

    Raises:
        IntegrityError: it does; the message names it.
    """
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    # aminmax does not support 8-bit floats; bfloat16 represents each of them exactly
    wide = tensor.to(torch.bfloat16) if tensor.dtype.itemsize == 1 else tensor
    low, high = torch.aminmax(wide.detach())
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        raise IntegrityError(
            f"`{name}` contains NaN or Inf",
            hint="check the original checkpoint; if it is finite, use another method or dtype",
        )
