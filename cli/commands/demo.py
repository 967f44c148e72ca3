"""Quantize the embedded model with every method."""

from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import Console
from quantkit.cli.render.figures import sweep_table

EXAMPLES = """\b
Examples:
  quantkit demo
  quantkit demo --output artifacts --json
"""


def demo(
    console: Console,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder in which to keep the artifacts.")
    ] = None,
    page: Annotated[Path, typer.Option(help="File for the report page.")] = Path(
        "quantkit-demo.html"
    ),
) -> None:
    """Try every method on the embedded model.

    Runs without network and GPU, prints a table and writes a report page.
    """
    from quantkit.api import evaluation

    swept = evaluation.demo(output, page=page, report=console.report)
    console.result(swept.to_dict(), [sweep_table(swept.runs), f"report: {page.resolve()}"])


COMMAND = demo
