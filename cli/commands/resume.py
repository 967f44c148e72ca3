"""Go on with a run that was stopped or killed."""

from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import Console
from quantkit.cli.render.gates import conclude
from quantkit.cli.render.result import result_lines
from quantkit.cli.stopping import resumable

EXAMPLES = """\b
Examples:
  quantkit resume name-gptq-4bit
  quantkit resume out --json
"""


def resume(
    console: Console,
    output: Annotated[
        Path, typer.Argument(metavar="OUT", help="The folder that the run was to make.")
    ],
) -> int:
    """Go on with a killed `quantize` or `fit`, to the same bytes."""
    from quantkit.api import artifacts

    with resumable(console, output):
        result = artifacts.resume(output, report=console.report)
    if result is None:
        console.result({"output": str(output), "complete": True}, f"{output} is complete")
        return 0
    console.result(result.to_dict(), result_lines(result))
    return conclude(console, result.gates, result.undecided)


COMMAND = resume
