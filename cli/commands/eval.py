"""Measure a model or an artifact."""

from typing import Annotated

import typer

from quantkit.cli.console import Console
from quantkit.cli.figures import evaluation_lines

EXAMPLES = """\b
Examples:
  quantkit eval OUT --reference org/name
  quantkit eval ./model --text held-out.txt --sequence-length 2048 --windows 40 --json
"""


def evaluate(
    console: Console,
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="Folder, or org/name.")],
    reference: Annotated[
        str | None, typer.Option(help="The original model; without it there is no KL.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="File, folder or hub data set. Default: quantkit's own."),
    ] = None,
    sequence_length: Annotated[int, typer.Option(min=2, help="Tokens in a window.")] = 512,
    windows: Annotated[
        int, typer.Option(min=1, help="Windows scored; more take longer and err less.")
    ] = 16,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let code of the model folder run.")
    ] = False,
) -> None:
    """Measure perplexity, and KL from the original."""
    from quantkit import api

    found = api.evaluate(
        artifact,
        reference=reference,
        text=text,
        sequence_length=sequence_length,
        windows=windows,
        trust_remote_code=trust_remote_code,
        report=console.report,
    ).to_dict()
    console.result(found, "\n".join(evaluation_lines(found)))


COMMAND = evaluate
