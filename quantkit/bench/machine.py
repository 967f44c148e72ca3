"""The machine that a figure was measured on: speeds of two machines are not comparable."""

import platform
from pathlib import Path
from typing import Any

import torch

from quantkit.checkpoint.files import found_in
from quantkit.pipeline.processor import processor

DRIVER = Path("/proc/driver/nvidia/version")


def machine() -> dict[str, Any]:
    """Names of processor, GPU and its driver (None without one), and torch's threads."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": processor() or platform.processor() or None,
        "gpu": gpu,
        "driver": driver() if gpu else None,
        "threads": torch.get_num_threads(),
    }


def driver() -> str | None:
    """The version of NVIDIA's driver, where it is loaded (Linux)."""
    return found_in(DRIVER, r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)")
