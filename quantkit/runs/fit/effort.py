"""The time of a fit, shown before it begins: the measuring pass and the two builds."""

from collections.abc import Callable, Sequence

from quantkit.calibration.tokens import Calibration
from quantkit.core.plan import Plan
from quantkit.core.progress import Progress, Report
from quantkit.core.resources import Work
from quantkit.core.units import span
from quantkit.planning.run.estimate import summary
from quantkit.planning.run.timing import MachineSpeed
from quantkit.runs.fit.expected import Solved, to_solve
from quantkit.runs.fit.problem import Problem, probe_of


def show_effort(
    problem: Problem,
    calibration: Calibration,
    build: Plan,
    speed_of: Callable[[Work, Report], MachineSpeed | None],
    report: Report,
) -> None:
    """Report the planned time and memory; seconds only if this machine was timed.

    `build` is the plan of one build; `speed_of` returns the speed and may time the machine.
    """
    prepared = problem.prepared
    parts = [f"two builds of {summary(build)} each"]
    probe = probe_of(calibration)
    counts = (probe.statistics.numel(), probe.scored.numel())
    solved = [to_solve(choice) for choice in problem.choices]
    work = measuring_work(solved, len(prepared.model.skeleton.blocks), *counts)
    speed = speed_of(work, report) if prepared.model.device.type == "cpu" else None
    seconds = speed.seconds(work, prepared.method.name, "F32") if speed else None
    if seconds is not None:
        parts.insert(0, f"{span(seconds)} of measuring, then")
    report(Progress("plan", 1, 1, " ".join(parts)))


def measuring_work(measured: Sequence[Solved], blocks: int, seen: int, scored: int) -> Work:
    """The operations of measuring all options.

    All blocks run once on `seen` tokens for the statistics and on `scored` tokens for the KL; for
    each option whose KL is measured the blocks from its own to the last run again on the latter.
    """
    choices = [each.choice for each in measured]
    sizes = [0] * blocks
    for choice in choices:
        sizes[choice.block] += sum(f.out_features * f.in_features for f in choice.linears)
    work = Work(forward=(seen + scored) * sum(sizes))
    for choice, probed in ((each.choice, each.probed) for each in measured):
        options = sum(scheme is not None for scheme in choice.schemes)
        if not options:
            continue
        inputs = [choice.linears[0].in_features] * len(choice.groups)
        weights = sum(f.out_features * f.in_features for f in choice.linears)
        work += Work(
            forward=len(probed) * scored * sum(sizes[choice.block :]),
            hessian=seen * sum(n**2 for n in inputs) // 2,
            weights=options * weights,
            crossed=options * sum(f.out_features * f.in_features**2 for f in choice.linears),
            cubed=options * sum(n**3 for n in inputs),
        )
    return work
