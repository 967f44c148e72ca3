"""A run on this machine: its plan with the memory of the process and the seconds."""

from dataclasses import replace

from quantkit.core.plan import Plan
from quantkit.core.resources import Memory
from quantkit.core.units import size, span
from quantkit.planning.run.timing import MachineSpeed

KEPT = 1.02
"""What an allocator keeps for itself: real peaks lie from 3 % under to 4 % over what is counted."""


def summary(plan: Plan) -> str:
    """What a run needs in a few words: `5.73 GB of files, 18.6 GB peak memory, 2.1 to 8.8 minutes`.

    What is not known is left out.
    """
    parts = []
    if plan.files is not None:
        kept = f" and {size(plan.files.kept)} beside to resume" if plan.files.kept else ""
        parts.append(f"{size(plan.files.bytes)} of files{kept}")
    if plan.memory is not None and plan.memory.rss_bytes is not None:
        parts.append(f"{size(plan.memory.rss_bytes)} peak memory")
    elif plan.memory is not None:
        parts.append(f"{size(plan.memory.peak.bytes)} peak memory beside Python with torch")
    if plan.evaluation is not None:
        known = plan.evaluation.rss_bytes
        beside = "" if known else " beside Python with torch"
        where = ", its hidden states on disk" if plan.evaluation.holding.spilled else ""
        peak = size(known or plan.evaluation.peak.bytes)
        parts.append(f"{peak}{beside} in the evaluation{where}")
    if plan.memory is not None and plan.memory.holding.replayed:
        parts.append(f"activations {plan.memory.holding}, {plan.memory.forwards:.1f} forwards")
    if plan.time is not None and plan.time.seconds is not None:
        parts.append(span(plan.time.seconds))
    return ", ".join(parts)


def with_base(memory: Memory, base: int | None, held: int = 0) -> Memory:
    """The memory in a process that holds `base` bytes before, and has held `held` at most."""
    if base is None:
        return memory
    rss = max(held, round(KEPT * (base + memory.peak.bytes)))
    return replace(memory, base_bytes=base, rss_bytes=rss)


def on_machine(
    plan: Plan, speed: MachineSpeed | None, base: int | None = None, held: int = 0
) -> Plan:
    """The plan with what depends on a machine of this `speed`: memory of the process, and seconds.

    If this process is the one that runs, it holds `base` bytes before, and has held `held` at most.
    """
    memory, time = plan.memory, plan.time
    if base is None and speed is not None:
        base = speed.base_rss_bytes
    if memory is not None:
        memory = with_base(memory, base, held)
    if time is not None and speed is not None:
        seconds = speed.seconds(time.work, plan.recipe.method, time.dtype)
        time = replace(time, seconds=seconds)
    return replace(plan, memory=memory, time=time)
