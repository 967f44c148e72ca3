"""What `verify` found, as lines: one for each kind of problem, with a count."""

from collections.abc import Iterator

from quantkit.cli.tables import Part
from quantkit.core.check import Problem, Verification
from quantkit.core.units import duration, size

NAMED = 3
"""Paths that a line names before it counts the rest."""


def lines(found: Verification) -> list[Part]:
    """The problems by code, what was not checked, and the verdict."""
    parts: list[Part] = []
    for group in _grouped(found.problems):
        parts += [_line(group), f"try: {group[0].remedy}"]
    parts += [f"not checked: {line}" for line in _unchecked(found)]
    return [*parts, _verdict(found)]


def _grouped(problems: tuple[Problem, ...]) -> Iterator[list[Problem]]:
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.code, problem.remedy), []).append(problem)
    yield from groups.values()


def _line(group: list[Problem]) -> str:
    first, *rest = group
    line = f"{first.code}: {first.sentence}"
    if not rest:
        return line
    named = ", ".join(f"`{each.path}`" for each in rest[: NAMED - 1])
    more = f" and {len(rest) - NAMED + 1} more" if len(rest) > NAMED - 1 else ""
    return f"{line}\n  {len(group)} times, also {named}{more}"


def _unchecked(found: Verification) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for each in found.unchecked:
        reasons.setdefault(each.reason.replace(each.path, "*"), []).append(each.path)
    for reason, paths in reasons.items():
        count = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield f"`{paths[0]}`{count}: {reason.replace('*', paths[0])}"


def _verdict(found: Verification) -> str:
    what = f"{found.modules} quantized weights and {found.tensors} other tensors"
    what += f" ({found.format})" if found.format else ""
    what += f", {size(found.bytes)} in {duration(found.seconds)}"
    if found.status == "sound":
        return f"{found.artifact} is sound: {what}"
    if found.status == "incomplete":
        return f"{found.artifact}: nothing is wrong with what could be checked: {what}"
    count = len(found.problems)
    return f"{found.artifact} is faulty: {count} problem{'s' if count > 1 else ''}; {what}"
