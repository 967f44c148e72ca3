"""Gates and tasks as tables, and as an exit code."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import Console
from quantkit.cli.tables import Part, table

if TYPE_CHECKING:
    from quantkit.core.limit import Undecided
    from quantkit.results.schema import GateOutcome

MISSED = 3
GateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gate",
        metavar="EXPR",
        help="A limit, e.g. 'kl.mean<0.05'; exit code 3 if missed. Repeatable.",
    ),
]
BaselineOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="eval.json of an earlier run; exit code 3 if quality, size, memory or speed is worse.",
    ),
]


def gate_lines(outcomes: Sequence[Mapping[str, Any]]) -> list[Part]:
    """A line that counts, and the table; nothing where there are no gates."""
    if not outcomes:
        return []
    states = [outcome["status"] for outcome in outcomes]
    counts = [
        f"{states.count(state)} {state}"
        for state in ("passed", "failed", "undecided")
        if state in states
    ]
    rows = [
        (
            outcome["expression"],
            _figure(outcome["value"]),
            _interval(outcome["interval"]),
            _figure(outcome["limit"]),
            outcome["status"],
        )
        for outcome in outcomes
    ]
    head = ("gate", "measured", "95 % interval", "limit", "outcome")
    reasons = [f"{o['expression']}: {o['why']}" for o in outcomes if o["why"]]
    return ["", f"gates  {', '.join(counts)}", table(head, rows), *reasons]


def task_lines(found: Mapping[str, Any]) -> list[Part]:
    """Recovery, flips and significance of each task."""
    rows = [
        (
            task["name"],
            f"{100 * task['reference_accuracy']:.1f} %",
            f"{100 * task['accuracy']:.1f} %",
            _percent(task["recovery"], task["recovery_ci95"]),
            f"{task['right_to_wrong']} lost, {task['wrong_to_right']} won",
            task["mcnemar_p"],
            f"{100 * task['detectable_fraction']:.1f} points",
        )
        for task in found["tasks"]
    ]
    head = ("task", "original", "this", "recovery", "flips", "p", "could show")
    return ["", table(head, rows)] if rows else []


def conclude(
    console: Console, outcomes: Iterable["GateOutcome"], undecided: "Undecided" = "warn"
) -> int:
    """The exit code; with --json the table of a missed gate goes to the people on stderr."""
    from quantkit.results.decision import missed

    found = list(outcomes)
    if not missed(found, undecided):
        return 0
    if console.as_json:
        parts = gate_lines([outcome.model_dump() for outcome in found])
        console.note("\n".join(map(str, parts)))
    return MISSED


def _figure(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _interval(interval: Sequence[float] | None) -> str:
    return " to ".join(map(_figure, interval)) if interval else "-"


def _percent(value: float, interval: Sequence[float]) -> str:
    return f"{100 * value:.1f} +- {50 * (interval[1] - interval[0]):.1f} %"
