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
        Path | None, typer.Option("--output", "-o", help="Keep the sweep's artifacts here.")
    ] = None,
    page: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("quantkit-demo.html"),
) -> None:
    """Try every method on the embedded model.

    Needs neither network nor GPU; ends in a table and a report page that compare the results.
    """
    from quantkit import api

    swept = api.demo(output, page=page, report=console.report)
    console.result(swept.to_dict(), [sweep_table(swept.runs), f"report: {page.resolve()}"])


COMMAND = demo
