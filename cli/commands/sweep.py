"""Run many recipes on one model, resumably."""

import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from quantkit.cli.console import Console
from quantkit.cli.options import Calibration, Device, Samples, TrustRemoteCode
from quantkit.cli.render.figures import sweep_table
from quantkit.cli.render.gates import MISSED
from quantkit.cli.stopping import resumable
from quantkit.core.errors import InputError

EXAMPLES = """\b
Examples:
  quantkit sweep org/name --recipes gptq,awq,nf4 -o sweep
  quantkit sweep ./model --recipes rtn,gptq --bits 4,3 --group-size 64,channel -o sweep
"""
REFUSED = 4  # every recipe was


def sweep(
    console: Console,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model folder or hub id org/name[@revision].")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Sweep folder; an unfinished sweep is resumed.")
    ],
    recipes: Annotated[
        str, typer.Option(metavar="A,B,...", help="Shipped recipes or .yaml files.")
    ],
    bits: Annotated[
        str | None,
        typer.Option(metavar="N,...", help="Bit widths to run each integer recipe with."),
    ] = None,
    group_size: Annotated[
        str | None,
        typer.Option(metavar="N|channel,...", help="Group sizes to run each integer recipe with."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key of all recipes. Repeatable."),
    ] = None,
    calibration: Calibration = None,
    samples: Samples = None,
    text: Annotated[
        str | None,
        typer.Option(help="Text to score: file, folder or hub data set. Default: built-in text."),
    ] = None,
    windows: Annotated[int, typer.Option(min=1, help="Number of windows to score.")] = 16,
    device: Device = "auto",
    runner: Annotated[str, typer.Option(help="local, or ray for a Ray cluster.")] = "local",
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Run many recipes on one model; resumable."""
    from quantkit.recipes.loader import build_recipe

    wanted = [
        build_recipe(
            name,
            settings=settings or (),
            bits=bit,
            group_size=group,
            calibration=calibration,
            samples=samples,
        )
        for name, bit, group in grid(_listed(recipes), _listed(bits), _listed(group_size))
    ]
    from quantkit.api import evaluation

    with resumable(console, output, "the same command again"):
        swept = evaluation.sweep(
            model,
            output,
            wanted,
            text=text,
            windows=windows,
            device=device,
            runner=runner,
            trust_remote_code=trust_remote_code,
            report=console.report,
        )
    next_step = f"next: quantkit report {shlex.quote(str(output))} -o report.html"
    console.result(swept.to_dict(), [sweep_table(swept.runs), next_step])
    failed = sum(run.status == "failed" for run in swept.runs)
    if failed:
        console.note(
            f"{failed} of {len(swept.runs) - 1} runs failed; see the last column of the table"
        )
    for run in swept.runs:
        if run.summary.gates_missed:
            console.note(f"{run.label}: {run.summary.gates_missed} gates missed")
    if any(run.summary.gates_missed for run in swept.runs):
        return MISSED
    return 0 if any(run.status == "done" for run in swept.runs[1:]) else REFUSED


def grid(
    recipes: list[str], bits: list[str], group_sizes: list[str]
) -> Iterator[tuple[str, int | None, str | None]]:
    """Every recipe with every pair of bits and group size; one with a grid of its own once.

    Raises:
        InputError: no recipe, or bits that are no number.
    """
    from quantkit.recipes.loader import build_recipe

    if not recipes:
        raise InputError("--recipes is empty", hint="--recipes gptq,awq,nf4")
    wrong = [word for word in bits if not word.isdecimal()]
    if wrong:
        raise InputError(f"--bits {wrong[0]}: expected 2 to 8", hint="--bits 4,3")
    for name in recipes:
        scheme = build_recipe(name).scheme
        if scheme.grid != "int" or scheme.activation is not None:
            yield name, None, None
            continue
        for bit, group in product(bits or [""], group_sizes or [""]):
            yield name, int(bit) if bit else None, group or None


def _listed(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


COMMAND = sweep
