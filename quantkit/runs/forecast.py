"""The memory and time that a run needs on this machine, planned before it starts."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from quantkit.bench.memory import resident_bytes
from quantkit.bench.throughput import run_kernels, time_machine
from quantkit.checkpoint.dtypes import DTYPE_NAMES
from quantkit.checkpoint.files import found_in
from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import ResourceError
from quantkit.core.plan import Plan
from quantkit.core.progress import Report, silent
from quantkit.core.ranks import ALONE, Ranks
from quantkit.core.resources import Work
from quantkit.core.units import size
from quantkit.model.opened import OpenModel
from quantkit.pipeline.measure import peak_rss
from quantkit.pipeline.memory import give_back
from quantkit.pipeline.prepare import Prepared
from quantkit.planning.model.architecture import Architecture, Layer
from quantkit.planning.model.headers import inventory_from_headers
from quantkit.planning.run.estimate import on_machine
from quantkit.planning.run.files import Run, plan_run
from quantkit.planning.run.timing import MachineSpeed, recall, remember

CPU = torch.device("cpu")
LARGE = 200_000_000
"""From so many weights on a run takes minutes, and half a minute of timing is worth it."""
MARGIN = 1.1
"""A run is refused only if its planned memory exceeds the free memory by this factor."""


def plan_here(
    prepared: Prepared,
    windows: tuple[int, ...],
    max_shard_size: int,
    report: Report = silent,
    *,
    timed: bool = True,
) -> Plan:
    """The plan of a prepared run, with its memory and time on this machine.

    `windows`: number and length of the calibration windows; (0, 0) without calibration. `timed`:
    time the machine now if that was not done and the run is long enough.
    """
    plan = plan_prepared(prepared, windows, max_shard_size)
    if prepared.model.device.type != "cpu" or plan.time is None:
        return plan
    run_kernels()
    give_back()
    base = resident_bytes()
    if base is None:
        return plan
    speed = machine_speed(plan.time.work, report) if timed else recall()
    return on_machine(plan, speed, base, peak_rss())


def machine_speed(work: Work, report: Report) -> MachineSpeed | None:
    """The speed of this machine; it is timed now if needed and the run is long enough."""
    speed = recall()
    if speed is None and work.weights >= LARGE and resident_bytes() is not None:
        remember(speed := time_machine(report))
    return speed


def plan_prepared(prepared: Prepared, windows: tuple[int, ...], max_shard_size: int) -> Plan:
    """The plan with the machine-independent resources, from the traced linears and groups."""
    model, schemes = prepared.model, prepared.plan.schemes
    config = model.text_config
    blocks = (Layer(None, None),) * len(model.skeleton.blocks)
    dtype = DTYPE_NAMES[model.source_dtype]
    hidden = int(config.hidden_size)
    shape = Architecture(
        "", hidden, int(config.vocab_size), tied=False, layers=blocks, context=None, dtype=dtype
    )
    facts = {each.linear.name: each.linear for each in prepared.plan.dispositions}
    quantized = {
        model.stored_name(f"{linear}.weight"): (facts[linear], scheme)
        for linear, scheme in schemes.items()
    }
    run = Run(
        method=prepared.method,
        output=prepared.format,
        hidden=hidden,
        dtype=dtype,
        windows=windows[0],
        length=windows[1],
        max_shard_size=max_shard_size,
        device=model.device.type,
    )
    inventory = inventory_from_headers(_cut(model), shape)
    files, memory, time = plan_run(inventory, quantized, run)
    return replace(prepared.plan, files=files, memory=memory, time=time)


def _cut(model: OpenModel) -> dict[str, TensorInfo]:
    """The headers, with what holds the tensors of many experts cut into these."""
    names = dict(model.checkpoint.names)
    for stored, parts in model.weights.cut.items():
        info = names.pop(stored)
        for part in parts:
            name, (_, shape) = model.stored_spec(part)
            names[name] = info._replace(shape=shape)
    return names


def require_memory(plan: Plan, device: torch.device = CPU, ranks: Ranks = ALONE) -> None:
    """Check that the planned peak fits into the free memory of a CPU or CUDA device.

    On a CPU that of all ranks together, which are taken to run on this machine.

    Raises:
        ResourceError: it exceeds free memory by more than MARGIN.
    """
    if device.type == "cuda":
        free: int | None = _free_of(device)
    else:
        free = available_bytes() if plan.memory and plan.memory.rss_bytes else None
    if free is None or plan.memory is None:
        return
    most = plan.memory.peak
    needed = most.bytes * (ranks.count if device.type == "cpu" else 1)
    if needed > MARGIN * free:
        of = "memory" if device.type == "cpu" else f"memory on {device}"
        raise ResourceError(
            f"the run needs about {size(needed)} of {of}, but {size(free)} are free",
            why=f"{most.name}: {most.rule}",
            hint="fewer or shorter calibration windows, e.g. --samples 32",
        )


def _free_of(device: torch.device) -> int:
    """Bytes that a CUDA device has left, those that torch keeps for later included."""
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
