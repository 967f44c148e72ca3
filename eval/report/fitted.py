"""Builds whose bits were chosen for a budget, and the alternatives within it."""

from dataclasses import dataclass

from quantkit.eval.report.numbers import grouped, significant, unit_of
from quantkit.eval.report.study import Build, Study
from quantkit.results.fit_result import Fit, FitPoint

POINTS = 12


@dataclass(frozen=True)
class Frontier:
    """A build's table of sizes against expected and measured KL, and what was concluded."""

    build: Build
    said: str
    rows: list[tuple[str, list[str]]]


def frontiers(study: Study) -> list[Frontier]:
    """One for each build that was fitted."""
    return [
        Frontier(build, _said(build.result.fit), _rows(build.result.fit))
        for build in study.builds
        if build.result and build.result.fit
    ]


def _said(fit: Fit) -> str:
    size = f"{grouped(fit.bytes)} of {grouped(fit.budget_bytes)} bytes"
    served = fit.served
    load = (
        f", for {served.gpu}, {served.batch} x {grouped(served.context)} tokens" if served else ""
    )
    return f"The {fit.shipped} build was written ({size}{load}): {fit.why}."


def _rows(fit: Fit) -> list[tuple[str, list[str]]]:
    """By size: mixed ones that would be best, and every uniform one; those built with their KL."""
    step = max(1, len(fit.frontier) // POINTS)
    named = {point.name: point for point in fit.uniforms}
    if fit.uniform is not None:
        named[fit.uniform.name] = fit.uniform
    points = [(point, "mixed") for point in fit.frontier[::step]]
    points += [(point, name) for name, point in named.items()]
    points += [(fit.mixed, "mixed, built")] if fit.mixed else []
    points.sort(key=lambda found: found[0].bytes)
    unit, factor = unit_of([point.bytes for point, _ in points])
    return [(name, _cells(point, unit, factor, fit.budget_bytes)) for point, name in points]


def _cells(point: FitPoint, unit: str, factor: int, budget: int) -> list[str]:
    measured = "" if point.measured_kl is None else significant(point.measured_kl)
    fits = "yes" if point.bytes <= budget else ""
    size = f"{significant(point.bytes / factor)}\u00a0{unit}"
    return [size, fits, significant(point.kl), measured]
