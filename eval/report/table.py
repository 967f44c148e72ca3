"""The report as Markdown, CSV and JSON."""

import csv
import io
import json
import re
from typing import Any

from quantkit.core.units import UNIT_NOTE
from quantkit.eval.report.columns import Column, columns
from quantkit.eval.report.frontier import frontier
from quantkit.eval.report.numbers import visible
from quantkit.eval.report.recommendation import choose, level_line, one_line
from quantkit.eval.report.study import Build, Study
from quantkit.eval.report.targets import default_target

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def markdown(study: Study) -> str:
    """Verdict, a table of all builds, the protocol and the commands."""
    target = default_target(study)
    choice = choose(study, target)
    shown = columns(study, target)
    stated = (choice.verdict, *choice.others)
    lines = [f"# {_escaped(study.title)}", ""]
    lines += [f"- **{_escaped(each.name)}** {_escaped(each.text)}" for each in stated]
    heads = [f"{c.title} ({c.unit})" if c.unit else c.title for c in shown]
    lines += ["", _row(["Build", *heads]), _row(["---", *["---:"] * len(shown)])]
    for build in study.everything:
        cells = [c.cell(build) for c in shown]
        lines.append(_row([_escaped(build.label), *(f"{c.text} {c.error}".strip() for c in cells)]))
    lines += ["", f"{UNIT_NOTE}.", "", _row(["Build", "Verdict"]), _row(["---"] * 2)]
    for build in study.builds:
        said = f"{one_line(build, study)} {level_line(build)}".strip()
        lines.append(_row([_escaped(build.label), _escaped(said)]))
    if study.protocol:
        lines += ["", f"Protocol: {_escaped(protocol_line(study))}."]
    commands = [visible(build.command) for build in study.everything if build.command]
    if commands:
        # a fence longer than any run of backticks inside cannot be closed from inside
        runs = [len(run) for command in commands for run in re.findall("`+", command)]
        fence = "`" * max(3, 1 + max(runs, default=0))
        lines += ["", f"{fence}sh", *commands, fence]
    return "\n".join(lines) + "\n"


def protocol_line(study: Study) -> str:
    """What was scored, in one line."""
    p = study.protocol
    if p is None:
        return ""
    what = f"{p.windows} windows of {p.sequence_length} tokens of {p.text}"
    arithmetic = p.dtype or "an unstated dtype"
    legend = "± is half of a 95 % interval"
    return f"{p.name}, {what}, in {arithmetic}, token ids {p.tokens_sha256}; {legend}"


def as_csv(study: Study) -> str:
    """One line a build: its figures in full, with their units in the head."""
    stream = io.StringIO()
    rows = _figures(study)
    writer = csv.DictWriter(stream, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _inert(value) for key, value in row.items()})
    return stream.getvalue()


def as_json(study: Study) -> dict[str, Any]:
    """The same figures, with the verdicts and the results in full."""
    target = default_target(study)
    choice = choose(study, target)
    builds = []
    for build, figures in zip(study.everything, _figures(study), strict=True):
        result = build.result.model_dump(mode="json", by_alias=True) if build.result else None
        builds.append(figures | {"result": result})
    return {
        "schema": "quantkit.report/1",
        "title": study.title,
        "created_utc": study.created_utc,
        "verdict": f"{choice.verdict.name} {choice.verdict.text}",
        "others": [f"{other.name} {other.text}" for other in choice.others],
        "pick": choice.pick.label if choice.pick else None,
        "load": {
            "axis": target.axis,
            "limit_bytes": target.limit_bytes,
            "context_tokens": target.context_tokens,
            "sequences": target.sequences,
            "max_kl": target.max_kl,
        },
        "builds": builds,
    }


def json_text(study: Study) -> str:
    """The JSON document as text."""
    return json.dumps(as_json(study), indent=2, allow_nan=False) + "\n"


def _figures(study: Study) -> list[dict[str, Any]]:
    """A row a build: its figures by name and unit."""
    target = default_target(study)
    shown = columns(study, target)
    front = {build.key for build in frontier(study, target)}
    return [_row_of(study, build, shown, build.key in front) for build in study.everything]


def _row_of(study: Study, build: Build, shown: list[Column], on_front: bool) -> dict[str, Any]:  # noqa: FBT001 - passed on
    kl = build.kl
    interval = kl.ci95 if kl else None
    level = build.measured.kl_level if build.measured else None
    return {
        "build": build.label,
        "family": build.family,
        "status": build.status,
        **{column.field: column.cell(build).value for column in shown},
        "kl_standard_error_nats": kl.standard_error if kl else None,
        "kl_ci95_low_nats": interval[0] if interval else None,
        "kl_ci95_high_nats": interval[1] if interval else None,
        "kl_level": level.level if level else None,
        "kl_level_next": "; ".join(level.next) if level else None,
        "frontier": on_front,
        "verdict": one_line(build, study) if build is not study.reference else "",
        "command": build.command,
    }


def _inert(value: Any) -> Any:
    """A text that no spreadsheet takes for a formula."""
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """The text as text: neither markup nor HTML of Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|&~!])", r"\\\1", visible(text))
