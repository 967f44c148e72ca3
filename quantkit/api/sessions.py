"""The session of a function that takes a device and limits of memory."""

from quantkit.core.progress import Report
from quantkit.core.session import Session

Size = int | str | None
"""Bytes, or text like "12GiB"; None: what is free."""


def session_on(
    device: str, max_ram: Size, max_vram: Size, report: Report, *, trust_remote_code: bool
) -> Session:
    """A session on `device`, of which "auto" is the GPU if there is one.

    Raises:
        InputError: there is no such device, or a limit is none of its memory.
    """
    from quantkit.pipeline.start import device_of
    from quantkit.runs.ceiling import limits_on

    name = device_of(device)
    limits = limits_on(name, max_ram, max_vram)
    return Session(name, trust_remote_code, report, limits=limits)
