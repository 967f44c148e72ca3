"""Which machine a figure was measured on: speeds of two are never compared."""

import platform
import re
from pathlib import Path
from typing import Any

import torch

from quantkit.pipeline.manifest import processor

DRIVER = Path("/proc/driver/nvidia/version")


def machine() -> dict[str, Any]:
    """Names of processor, GPU and its driver (None where there is none), and torch's threads."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": processor() or platform.processor() or None,
        "gpu": gpu,
        "driver": _found(DRIVER, r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)") if gpu else None,
        "threads": torch.get_num_threads(),
    }


def _found(path: Path, pattern: str) -> str | None:
    if not path.is_file():
        return None
    match = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))
    return match[1].strip() if match else None
