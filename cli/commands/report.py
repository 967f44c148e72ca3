"""Write what evaluations and sweeps found as a page, a table or JSON."""

from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import Console
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
        typer.Argument(
            metavar="DIR...", help="Sweep folders, artifacts, or folders with an eval.json."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="File to write: .html, .md, .csv or .json."),
    ] = Path("report.html"),
) -> None:
    """Compare results: quality against memory.

    The page is one self-contained file.
    """
    from quantkit.api import evaluation

    written = evaluation.report(folders, output)
    lines = [written.verdict, ""]
    lines += [f"{label}: {verdict}" for label, verdict in written.verdicts.items()]
    lines += ["", f"{written.output}  {size(written.bytes)}"]
    console.result(written.to_dict(), [line.replace("\u00a0", " ") for line in lines])


COMMAND = report
