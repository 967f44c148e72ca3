"""Measure a model or an artifact."""

from enum import StrEnum
from typing import Annotated

import typer

from quantkit.cli.console import Console
from quantkit.cli.figures import evaluation_lines
from quantkit.cli.speed import speed_lines

EXAMPLES = """\b
Examples:
  quantkit eval OUT --reference org/name
  quantkit eval OUT --reference org/name --speed --engine vllm
  quantkit eval ./model --text held-out.txt --sequence-length 2048 --windows 40 --json
"""


class Engine(StrEnum):
    """What can serve an artifact to be measured."""

    VLLM = "vllm"


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
    speed: Annotated[
        bool, typer.Option("--speed", help="Time its quantized computation here, and its memory.")
    ] = False,
    engine: Annotated[
        Engine | None, typer.Option(help="Time it in this engine under concurrent requests.")
    ] = None,
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
    lines = evaluation_lines(found)
    if speed or engine:
        timed = api.measure_speed(
            artifact,
            reference=reference,
            local=speed,
            engine="vllm" if engine else None,
            trust_remote_code=trust_remote_code,
            report=console.report,
        ).to_dict()
        lines += speed_lines(timed)
        found |= timed | {"notes": [*found.get("notes", ()), *timed["notes"]]}
    console.result(found, "\n".join(lines))


COMMAND = evaluate
