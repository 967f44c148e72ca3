"""Measure a model or an artifact."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import Console
from quantkit.cli.figures import evaluation_lines
from quantkit.cli.gates import BaselineOption, GateOption, conclude, gate_text, task_lines

EXAMPLES = """\b
Examples:
  quantkit eval OUT --reference org/name -o eval.json
  quantkit eval ./model --text wiki.test.txt --protocol wikitext2-2048 --json
"""


class Form(StrEnum):
    """How a reference is kept."""

    HIDDEN = "hidden"
    TOPK = "topk"


def evaluate(
    console: Console,
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="Folder, or org/name.")],
    reference: Annotated[
        str | None,
        typer.Option(help="The original model, or a saved reference; without it there is no KL."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="File, folder or hub data set. Default: quantkit's own."),
    ] = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="qk@1, long@1, wikitext2-2048, wikitext2-llamacpp or wikitext-lmeval: how the "
            "text is cut and scored."
        ),
    ] = "qk@1",
    sequence_length: Annotated[
        int | None, typer.Option(min=2, help="Tokens read at once. Default: the protocol's.")
    ] = None,
    windows: Annotated[
        int | None,
        typer.Option(min=1, help="Windows at most; more take longer and err less."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the result to this .json file.")
    ] = None,
    save_reference: Annotated[
        Path | None,
        typer.Option(help="Keep the reference in this new folder, for later --reference."),
    ] = None,
    reference_form: Annotated[
        Form, typer.Option(help="hidden: exact. topk: small, no weights, an estimate.")
    ] = Form.HIDDEN,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="lm-eval tasks, or .yaml files, with commas between."),
    ] = None,
    gate: GateOption = None,
    baseline: BaselineOption = None,
    allow_overlap: Annotated[
        bool, typer.Option("--allow-overlap", help="Score text that was calibrated on, too.")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let code of the model folder run.")
    ] = False,
) -> int:
    """Measure perplexity, and KL from the original."""
    from quantkit import api
    from quantkit.checkpoint import durable, strict_json

    result = api.evaluate(
        artifact,
        reference=reference,
        text=text,
        protocol=protocol,
        sequence_length=sequence_length,
        windows=windows,
        save_reference=save_reference,
        reference_form=reference_form.value,
        tasks=tasks.split(",") if tasks else (),
        gates=gate or (),
        baseline=baseline,
        allow_overlap=allow_overlap,
        trust_remote_code=trust_remote_code,
        report=console.report,
    )
    found = result.to_dict()
    if output is not None:
        durable.write_file(output, [strict_json.dumps(found)])
    lines = [*evaluation_lines(found), *task_lines(found), gate_text(found["gates"])]
    console.result(found, "\n".join(lines))
    return conclude(console, result.gates, result.undecided)


COMMAND = evaluate
