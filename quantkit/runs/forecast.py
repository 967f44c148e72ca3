"""The memory and time that a run needs on this machine, planned before it starts."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from quantkit.bench.throughput import run_kernels, time_machine
from quantkit.checkpoint.dtypes import DTYPE_NAMES
from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import ResourceError
from quantkit.core.facts import Layout
from quantkit.core.plan import Plan
from quantkit.core.progress import Report, silent
from quantkit.core.resources import OFFLOADED, PAUSED, REPLAYED, SPILLED, Holding, Work
from quantkit.core.units import size
from quantkit.model.opened import OpenModel
from quantkit.model.peaks import resident_bytes
from quantkit.pipeline.measure import peak_rss
from quantkit.pipeline.memory import give_back
from quantkit.pipeline.prepare import Prepared
from quantkit.planning.model.architecture import Architecture, Layer
from quantkit.planning.model.headers import inventory_from_headers
from quantkit.planning.run.estimate import on_machine
from quantkit.planning.run.files import Run, plan_run
from quantkit.planning.run.timing import MachineSpeed, recall, remember
from quantkit.runs.ceiling import MARGIN, Ceiling

LARGE = 200_000_000
"""From so many weights on a run takes minutes, and half a minute of timing is worth it."""
FEWER = "fewer or shorter calibration windows, e.g. --samples 32"


def plan_here(
    prepared: Prepared,
    windows: tuple[int, ...],
    max_shard_size: int,
    report: Report = silent,
    *,
    timed: bool = True,
    holding: Holding = PAUSED,
    ranks: int = 1,
) -> Plan:
    """The plan of a prepared run, with its memory and time on this machine.

    `windows`: number and length of the calibration windows; (0, 0) without calibration. `timed`:
    time the machine now if that was not done and the run is long enough. `holding` and `ranks` as
    in `planning.run.files.Run`.
    """
    plan = plan_prepared(prepared, windows, max_shard_size, holding, ranks)
    if prepared.model.device.type != "cpu" or plan.time is None:
        return plan
    base = held_bytes(prepared.model.device)
    if base is None:
        return plan
    speed = machine_speed(plan.time.work, report) if timed else recall()
    return on_machine(plan, speed, base, peak_rss())


def held_bytes(device: torch.device) -> int | None:
    """What this process holds before a run on a CPU, kernels of torch included; None elsewhere."""
    if device.type != "cpu":
        return None
    run_kernels()
    give_back()
    return resident_bytes()


def machine_speed(work: Work, report: Report, *, limited: bool = False) -> MachineSpeed | None:
    """The speed of this machine; it is timed now if needed and the run is long enough.

    Not where memory is `limited`: what timing takes is not planned.
    """
    speed = recall()
    if speed is None and work.weights >= LARGE and resident_bytes() is not None and not limited:
        remember(speed := time_machine(report))
    return speed


def plan_within(
    ceiling: Ceiling,
    prepared: Prepared,
    windows: tuple[int, ...],
    max_shard_size: int,
    report: Report = silent,
    *,
    timed: bool = True,
) -> Plan:
    """As `plan_here`, in the first way that fits into `ceiling`, or the leanest where none does."""
    tried: list[Plan] = []
    for holding in ways(prepared, windows, ceiling.ranks):
        plan = plan_here(
            prepared,
            windows,
            max_shard_size,
            report,
            timed=timed and ceiling.limit is None,
            holding=holding,
            ranks=ceiling.ranks,
        )
        if ceiling.holds(plan):
            return plan
        tried.append(plan)
    return min(tried, key=lambda plan: plan.memory.peak.bytes if plan.memory else 0)


def ways(prepared: Prepared, windows: tuple[int, ...], ranks: int = 1) -> tuple[Holding, ...]:
    """How the run can hold its activations, the fastest way first.

    What calls a linear again is not replayed: the first call would see the quantized weight, where
    a forward that waits at the last call has seen the original. Several ranks on a CPU hold inputs
    for each other in memory, so that a file would not help them.
    """
    groups = (group for kind in prepared.structure.kinds for group in kind.groups)
    if not windows[0] or any(group.calls > 1 for group in groups):
        return (PAUSED,)
    if prepared.model.device.type != "cpu":
        return (PAUSED, REPLAYED, OFFLOADED)
    return (PAUSED, REPLAYED, SPILLED) if ranks == 1 else (PAUSED, REPLAYED)


def plan_prepared(
    prepared: Prepared,
    windows: tuple[int, ...],
    max_shard_size: int,
    holding: Holding = PAUSED,
    ranks: int = 1,
) -> Plan:
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
        holding=holding,
        ranks=ranks,
        compensate=prepared.plan.recipe.calibration.compensate,
    )
    inventory = inventory_from_headers(_cut(model) | _scales(prepared.cache), shape)
    files, memory, time = plan_run(inventory, quantized, run)
    return replace(prepared.plan, files=files, memory=memory, time=time)


def _scales(cache: Layout) -> dict[str, TensorInfo]:
    """Headers of tensors that the files get beside the source's."""
    return {name: TensorInfo(*spec, "", 0, 0) for name, spec in cache.items()}


def _cut(model: OpenModel) -> dict[str, TensorInfo]:
    """The headers, with what holds the tensors of many experts cut into these."""
    names = dict(model.checkpoint.names)
    for stored, parts in model.weights.cut.items():
        info = names.pop(stored)
        for part in parts:
            name, (_, shape) = model.stored_spec(part)
            names[name] = info._replace(shape=shape)
    return names


def require_memory(plan: Plan, ceiling: Ceiling, remedy: Callable[[], str] = lambda: FEWER) -> None:
    """Check that a run fits into `ceiling`; `remedy` says what would.

    Raises:
        ResourceError: it exceeds its limit, or free memory by more than MARGIN.
    """
    peaks = [each.peak for each in (plan.memory, plan.evaluation) if each is not None]
    if peaks and not ceiling.holds(plan, MARGIN):
        most = max(peaks, key=lambda peak: peak.bytes)
        raise ResourceError(ceiling.misfit(plan), why=f"{most.name}: {most.rule}", hint=remedy())


def what_fits(
    plan: Plan, ceiling: Ceiling, prepared: Prepared, windows: tuple[int, ...], max_shard_size: int
) -> str:
    """Options with which a run of `windows` fits that does not as it is planned."""
    base = plan.memory.base_bytes if plan.memory else None

    def fits(samples: int) -> bool:
        plans = (
            plan_prepared(prepared, (samples, windows[1]), max_shard_size, holding, ceiling.ranks)
            for holding in ways(prepared, (samples, windows[1]), ceiling.ranks)
        )
        made = (replace(on_machine(p, None, base), evaluation=plan.evaluation) for p in plans)
        return any(ceiling.holds(each, MARGIN) for each in made)

    least, most = int(prepared.method.needs_inputs), windows[0]
    found = []
    if least < most and fits(least):
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (middle, most) if fits(middle) else (least, middle)
        found.append(f"--samples {least}")
    if plan.evaluation and ceiling.holds(replace(plan, evaluation=None), MARGIN):
        found.append("--no-eval")
    free = replace(ceiling, limit=None).holds(plan, MARGIN)
    return " or ".join([*found, larger(plan, ceiling)] if free or not found else found)


def larger(plan: Plan, ceiling: Ceiling) -> str:
    """The limit with which a plan fits, or the machine where the free memory does not hold it."""
    if replace(ceiling, limit=None).holds(plan, MARGIN):
        return f"{ceiling.option} {math.ceil(ceiling.whole(plan) / 10**7) / 100:g}GB"
    return f"a machine with {size(ceiling.beside(plan))} of free memory"
