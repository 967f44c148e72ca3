"""Copies between the host and a GPU: through pinned memory, on a stream of their own.

On every other device a copy is torch's own, and no function here asks CUDA anything.
"""

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

Result = TypeVar("Result")


def to_device(
    tensor: torch.Tensor, device: torch.device, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """`tensor` on `device` and in `dtype`; the host does not wait for a copy from pinned memory."""
    found = tensor.to(device, non_blocking=True).to(dtype or tensor.dtype)
    if found.is_cuda:  # its memory may be freed while kernels of the other stream still read it
        found.record_stream(torch.cuda.default_stream(device))
    return found


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` in CPU memory, complete."""
    if not tensor.is_cuda:
        return tensor.cpu()
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor)


def beside(device: torch.device, task: Callable[[], Result]) -> Callable[[], Result]:
    """`task`, to be called in another thread while this one goes on computing on `device`.

    It sees what was computed so far; its own copies and kernels are complete when it returns.
    """
    if device.type != "cuda":
        return task
    computed = torch.cuda.current_stream(device).record_event()

    def run() -> Result:
        stream = _stream(device)
        with torch.cuda.stream(stream):
            stream.wait_event(computed)
            result = task()
            stream.synchronize()
        return result

    return run


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all copies, as torch uses freed memory again on the stream that it was made for."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
