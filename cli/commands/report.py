"""Write what evaluations and sweeps found as a page, a table or JSON."""

from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import Console, printable
from quantkit.core.units import size

EXAMPLES = """\b
Examples:
  quantkit report runs/a -o report.html
  quantkit report out-gptq out-awq -o report.md
"""


def report(
    console: Console,
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Sweeps, or folders with eval.json, or artifacts."),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="A file .html, .md, .csv or .json."),
    ] = Path("report.html"),
) -> None:
    """Compare results: quality against memory.

    The page is one file that loads nothing from anywhere.
    """
    from quantkit import api

    written = api.report(folders, output)
    lines = [written.verdict, ""]
    lines += [f"{label}: {verdict}" for label, verdict in written.verdicts.items()]
    lines += ["", f"{written.output}  {size(written.bytes)}"]
    console.result(written.to_dict(), printable("\n".join(lines).replace("\u00a0", " ")))


COMMAND = report
