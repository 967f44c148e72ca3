"""Measure a model or an artifact."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from quantkit.cli.console import Console
from quantkit.cli.options import Device, MaxRam, MaxVram, TrustRemoteCode
from quantkit.cli.render.figures import evaluation_lines, triage_lines
from quantkit.cli.render.gates import BaselineOption, GateOption, conclude, gate_lines, task_lines
from quantkit.cli.render.speed import speed_lines
from quantkit.core.errors import InputError
from quantkit.core.registry import nearest

EXAMPLES = """\b
Examples:
  quantkit eval OUT --reference org/name -o eval.json
  quantkit eval ./model --text wiki.test.txt --protocol wikitext2-2048 --json
"""


class Engine(StrEnum):
    """Engines in which speed can be measured."""

    VLLM = "vllm"


REST: Mapping[str, tuple[str, ...]] = {
    "reference_form": ("hidden", "topk"),
    "allow_overlap": ("false", "true"),
    "kv_cache": ("stored", "16-bit", "fp8"),
}
"""What `--set` reaches; the first value of each is the default."""


def evaluate(
    console: Console,
    artifact: Annotated[
        str, typer.Argument(metavar="ARTIFACT", help="Model or artifact: folder or hub id.")
    ],
    reference: Annotated[
        str | None,
        typer.Option(help="Original model or saved reference; required for KL."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="Text to score: file, folder or hub data set. Default: built-in text."),
    ] = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="How the text is split and scored: qk@1, long@1, wikitext2-2048, "
            "wikitext2-llamacpp or wikitext-lmeval."
        ),
    ] = "qk@1",
    sequence_length: Annotated[
        int | None, typer.Option(min=2, help="Tokens in a window. Default: the protocol's.")
    ] = None,
    windows: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of windows; more take longer and reduce the error."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the result, .json.")
    ] = None,
    save_reference: Annotated[
        Path | None,
        typer.Option(help="New folder for the reference, to pass to --reference later."),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="lm-eval tasks or .yaml files, comma-separated."),
    ] = None,
    gate: GateOption = None,
    baseline: BaselineOption = None,
    triage: Annotated[
        bool, typer.Option("--triage", help="Find which blocks and linears carry the divergence.")
    ] = False,
    speed: Annotated[
        bool,
        typer.Option(
            "--speed", help="Measure speed and memory of the quantized model on this machine."
        ),
    ] = False,
    engine: Annotated[
        Engine | None, typer.Option(help="Measure speed in this engine under concurrent requests.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="reference_form=topk, allow_overlap=true or kv_cache=16-bit or fp8. Repeatable.",
        ),
    ] = None,
    device: Device = "auto",
    max_vram: MaxVram = None,
    max_ram: MaxRam = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Measure perplexity and KL divergence from the original."""
    from quantkit.api import evaluation
    from quantkit.checkpoint import destination, durable, strict_json

    rest = rest_of(settings or ())
    if output is not None:
        destination.require_file(output)
    result = evaluation.evaluate(
        artifact,
        reference=reference,
        text=text,
        protocol=protocol,
        sequence_length=sequence_length,
        windows=windows,
        save_reference=save_reference,
        reference_form="topk" if rest["reference_form"] == "topk" else "hidden",
        tasks=tasks.split(",") if tasks else (),
        gates=gate or (),
        baseline=baseline,
        allow_overlap=rest["allow_overlap"] == "true",
        triage=triage,
        speed=speed,
        engine="vllm" if engine else None,
        kv_cache=cast("Literal['stored', '16-bit', 'fp8']", rest["kv_cache"]),
        device=device,
        max_ram=max_ram,
        max_vram=max_vram,
        trust_remote_code=trust_remote_code,
        report=console.report,
    )
    found = result.to_dict()
    lines = [
        *evaluation_lines(found),
        *task_lines(found),
        *triage_lines(result.triage),
        *speed_lines(found),
        *gate_lines(found["gates"]),
    ]
    console.result(found, lines)
    if output is not None:
        durable.replace_file(output, strict_json.dumps(found))
        console.note(f"result: {output}")
    return conclude(console, result.gates, result.undecided)


def rest_of(settings: Sequence[str]) -> dict[str, str]:
    """Every key of REST with its value.

    Raises:
        InputError: no such key or value.
    """
    found = {key: values[0] for key, values in REST.items()}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in REST:
            known = tuple(REST)
            raise InputError(
                f"--set {setting}: unknown key `{key}`",
                why=f"known: {', '.join(known)}",
                hint=f"--set {nearest(key, known)}=...",
            )
        if value not in REST[key]:
            hint = " or ".join(f"--set {key}={known}" for known in REST[key])
            raise InputError(f"--set {setting}: no value of `{key}`", hint=hint)
        found[key] = value
    return found


COMMAND = evaluate
