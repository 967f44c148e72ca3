"""The memory that a run may take on this machine: what is free, and what its limits leave."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from quantkit.checkpoint.files import found_in
from quantkit.checkpoint.sizes import parse_size
from quantkit.core.errors import InputError
from quantkit.core.plan import Plan
from quantkit.core.session import Limits, Session
from quantkit.core.units import size
from quantkit.grid.exchange import exchange
from quantkit.model.peaks import resident_bytes

MARGIN = 1.1
"""A run is refused only if its planned memory exceeds the free memory by this factor."""
OVER = 1.05
"""What a CPU's process may take of a limit over what is planned: real peaks are up to 4 % over."""
SPLIT = 1.1
"""What a GPU's allocator may take of a limit over what is planned, as it keeps freed pieces."""


@dataclass(frozen=True)
class Ceiling:
    """What a run may take of a device: the bytes that are `free`, and its `limit`; None: unknown.

    Of a CPU's, all `ranks` take their part; each other device belongs to one.
    """

    device: str
    free: int | None
    limit: int | None
    ranks: int = 1

    def holds(self, plan: Plan, margin: float = 1.0) -> bool:
        """Whether a run fits, which may exceed the free memory by a factor of `margin`."""
        fits = self.free is None or self.beside(plan) <= margin * self.free
        return fits and (self.limit is None or self.whole(plan) <= self.limit)

    def beside(self, plan: Plan) -> int:
        """Bytes that a run takes beside what is held before it."""
        ranks = self.ranks if self.device == "cpu" else 1
        run, judging = plan.memory, plan.evaluation  # the first rank evaluates
        return max(run.peak.bytes * ranks if run else 0, judging.peak.bytes if judging else 0)

    def whole(self, plan: Plan) -> int:
        """Bytes of a run that count towards its limit: on a CPU those of the whole processes."""
        if self.device != "cpu":
            return round(SPLIT * self.beside(plan))
        known = plan.memory or plan.evaluation
        base = known.base_bytes if known else None
        return round(OVER * ((base or 0) * self.ranks + self.beside(plan)))

    def misfit(self, plan: Plan) -> str:
        """A sentence about a plan that does not fit."""
        of = "memory" if self.device == "cpu" else f"memory on {self.device}"
        if self.limit is not None and self.whole(plan) > self.limit:
            limit = f"{self.option} allows {size(self.limit)}"
            return f"the run needs about {size(self.whole(plan))} of {of}, and {limit}"
        free = size(self.free or 0)
        return f"the run needs about {size(self.beside(plan))} of {of}, but {free} are free"

    @property
    def option(self) -> str:
        """The option that limits memory on this device."""
        return "--max-ram" if self.device == "cpu" else "--max-vram"


def ceiling_of(device: torch.device, session: Session = Session()) -> Ceiling:
    """What a run of this session may take; with several ranks the least that one of them has."""
    limits, free = session.limits, _free_of(device)
    known = [each for each in exchange(session.ranks, free) if each is not None]
    limit, name = (limits.ram, "cpu") if device.type == "cpu" else (limits.vram, str(device))
    return Ceiling(name, min(known, default=None), limit, session.ranks.count)


def limits_on(device: str, ram: int | str | None, vram: int | str | None) -> Limits:
    """The limits of a run on `device`, each in bytes or as text.

    Raises:
        InputError: one is no size, or of memory that is not planned for such a run.
    """
    cpu = torch.device(device).type == "cpu"
    limits = Limits(
        None if ram is None else parse_size(ram, "--max-ram "),
        None if vram is None else parse_size(vram, "--max-vram "),
    )
    if cpu and vram is not None:
        raise InputError(
            "--max-vram limits the memory of GPUs, and the run is on the CPU",
            hint=f"--max-ram {vram}",
        )
    if not cpu and ram is not None:
        raise InputError(
            f"--max-ram limits runs on the CPU, and the run is on `{device}`",
            why="what such a run takes of the host's memory is not planned",
            hint=f"--max-vram {ram}",
        )
    if ram is not None and resident_bytes() is None:
        raise InputError(
            "--max-ram needs a system that reports resident memory", hint="leave out --max-ram"
        )
    return limits


@contextmanager
def bounded(device: torch.device, session: Session) -> Iterator[None]:
    """Let torch take no more of a CUDA device than the session's limit meanwhile."""
    limit = session.limits.vram
    if limit is None or device.type != "cuda":
        yield
        return
    index = torch.cuda.current_device() if str(device) == "cuda" else device.index
    whole = torch.cuda.get_device_properties(index).total_memory
    before = torch.cuda.get_per_process_memory_fraction(index)
    torch.cuda.set_per_process_memory_fraction(min(before, limit / whole), index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, index)


def _free_of(device: torch.device) -> int | None:
    """Bytes that a CPU has left, or a CUDA device, those that torch keeps for later included."""
    if device.type != "cuda":
        return available_bytes() if device.type == "cpu" else None
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free: int = torch.cuda.mem_get_info(device)[0]
    return free + kept


def available_bytes(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Free memory in bytes, including swap; None if the system does not report it.

    The smallest of the machine's and that of each control group of this process.
    """
    try:
        lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        free = (kilobytes["MemAvailable"] + kilobytes["SwapFree"]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None
    return min([free, *_left_to_groups(proc, groups)])


def _left_to_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Bytes left under the limit of each control group (v2 or v1) of this process.

    A container sees its own group as the root. The page cache counts as used, but is reclaimable.
    """
    own = found_in(proc / "self" / "cgroup", r"^0::/(.*)$") or ""
    older = found_in(proc / "self" / "cgroup", r"^\d+:(?:.*,)?memory(?:,.*)?:/(.*)$") or ""
    ways = (
        (groups, own, "memory.max", "memory.current", r"^(?:in)?active_file (\d+)$"),
        (
            groups / "memory",
            older,
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            r"^total_(?:in)?active_file (\d+)$",
        ),
    )
    for root, name, limit, used, cached in ways:
        for folder in (root / name, *(root / parent for parent in Path(name).parents)):
            most, taken = (found_in(folder / file, r"^(\d+)$") for file in (limit, used))
            if most and taken:
                stat = found_in(folder / "memory.stat", r"(?s)(.*)") or ""
                pages = sum(map(int, re.findall(cached, stat, re.MULTILINE)))
                yield max(0, int(most) - int(taken) + pages)
