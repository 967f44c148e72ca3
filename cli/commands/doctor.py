"""Check this machine and this installation."""

from typing import Annotated

import typer

from quantkit.cli.console import Console
from quantkit.cli.tables import Part, table

EXAMPLES = """\b
Examples:
  quantkit doctor --time
  quantkit doctor --json
"""
FAULTY = 5


def doctor(
    console: Console,
    time: Annotated[
        bool,
        typer.Option(
            "--time", help="Measure the speed of this machine for plan; takes half a minute."
        ),
    ] = False,
) -> int:
    """Check this machine and this installation.

    The exit code is 5 if a check fails.
    """
    from dataclasses import asdict

    from quantkit.api import planning

    findings = planning.doctor(time=time, report=console.report)
    rows = [(f.check, "ok" if f.ok else "FAULT", f.detail) for f in findings]
    hints = [f"try: {f.hint}" for f in findings if f.hint and not f.ok]
    parts: list[Part] = [table(("check", "", "found"), rows), *hints]
    console.result([asdict(finding) for finding in findings], parts)
    return 0 if all(finding.ok for finding in findings) else FAULTY


COMMAND = doctor
