"""Whether a compiled kernel does the work of a group of columns."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SIZES = (32, 64, 128)
"""Group sizes whose tile fits into registers, and is a power of 2 as Triton demands."""
DEVICES: tuple[str, ...] = ("cuda",)
OLDEST = (8, 0)
"""Compute capability of the oldest GPUs that Triton supports."""


def kernel_for(values: torch.Tensor, group_size: int, grid: object) -> ModuleType | None:
    """`grid.group_kernel` if it does groups of so many of these columns (.., d, n), else None.

    Without Triton, on older GPUs and other devices, in other dtypes than fp32, for other group
    sizes, whole rows among them, and other grids than integers, torch's operators do the same work.
    """
    import torch

    from quantkit.grid.affine import AffineGrid

    fits = group_size in SIZES and values.dtype == torch.float32 and isinstance(grid, AffineGrid)
    device = values.device
    if device.type not in DEVICES or not fits:
        return None
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else OLDEST
    if refusal(capability, triton=find_spec("triton") is not None):
        return None
    from quantkit.grid import group_kernel

    return group_kernel


def refusal(capability: tuple[int, int], *, triton: bool) -> str | None:
    """Why the kernel does not run on GPUs of this compute capability; None if it does."""
    if not triton:
        return "Triton is not installed"
    major, minor = OLDEST
    return None if capability >= OLDEST else f"Triton needs compute capability {major}.{minor}"
