"""Names of devices and processors."""

from pathlib import Path

import torch

from quantkit.checkpoint.files import found_in


def device_name(device: torch.device) -> str:
    """The kind of device and the name of its processor, e.g. `cpu, Example 9000`."""
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    name = processor()
    return f"{device.type}, {name}" if name else device.type


def processor() -> str | None:
    """The name of this machine's processor, where the system reports it."""
    return found_in(Path("/proc/cpuinfo"), r"^model name\s*: (.+)$")
