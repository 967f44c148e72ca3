"""Quantize a model into a folder that engines load."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quantkit.cli.console import Console
from quantkit.cli.options import (
    Calibration,
    Device,
    MaxRam,
    MaxVram,
    Samples,
    TrustRemoteCode,
    entries,
)
from quantkit.cli.render.gates import BaselineOption, GateOption, conclude
from quantkit.cli.render.result import family, result_lines
from quantkit.cli.stopping import resumable
from quantkit.cli.tables import Part, table
from quantkit.core.errors import InputError
from quantkit.core.gate import parse_gate

if TYPE_CHECKING:
    from quantkit.core.plan import Plan
    from quantkit.core.recipe import Recipe

EXAMPLES = """\b
Examples:
  quantkit quantize org/name -o name-gptq-4bit
  quantkit quantize ./model -o out --method awq --group-size 64 --calibration my.jsonl
"""


def quantize(
    console: Console,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model folder or hub id org/name[@revision].")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="New folder for the artifact.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Shipped recipe, .yaml file, or an artifact's. Default: the method's."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help=f"{entries('methods')}. Default: gptq.")
    ] = None,
    bits: Annotated[int | None, typer.Option(help="2 to 8. Default: 4.")] = None,
    group_size: Annotated[
        str | None,
        typer.Option(
            metavar="N|channel|tensor|128x128",
            help="Weights that share a scale; smaller groups take more bytes and reduce the error. "
            "Default: the largest of 128, 64, 32 that divides; floats have their own.",
        ),
    ] = None,
    symmetric: Annotated[
        bool | None,
        typer.Option("--symmetric/--asymmetric", help="Quantize without or with a zero point."),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", help=f"{entries('formats')}."),
    ] = None,
    calibration: Calibration = None,
    samples: Samples = None,
    sequence_length: Annotated[
        int | None, typer.Option(help="Tokens in a window. Default: 2048.")
    ] = None,
    device: Device = "auto",
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="0,1|all", help="Several GPUs: a process on each, with the result of one."
        ),
    ] = None,
    max_vram: MaxVram = None,
    max_ram: MaxRam = None,
    max_shard_size: Annotated[str, typer.Option(help="Maximum size of a weight file.")] = "5GB",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set any recipe key. Repeatable."),
    ] = None,
    evaluate: Annotated[
        bool, typer.Option("--eval/--no-eval", help="Compare the result with the original.")
    ] = True,
    gate: GateOption = None,
    baseline: BaselineOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Show what would be done and exit.")
    ] = False,
    print_recipe: Annotated[
        bool, typer.Option("--print-recipe", help="Print the recipe as YAML and exit.")
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Quantize a model and measure the quality loss."""
    from quantkit.recipes.loader import build_recipe

    wanted = build_recipe(
        recipe,
        settings=settings or (),
        method=method,
        bits=bits,
        group_size=group_size,
        symmetric=symmetric,
        format=format_,
        calibration=calibration,
        samples=samples,
        sequence_length=sequence_length,
    )
    wanted = replace(wanted, gates=(*wanted.gates, *map(parse_gate, gate or ())))
    if print_recipe:
        return _print_recipe(console, wanted)
    from quantkit.api import artifacts
    from quantkit.checkpoint.sizes import parse_size

    if dry_run:
        planned = artifacts.dry_run(
            model,
            recipe=wanted,
            device=device,
            max_ram=max_ram,
            max_vram=max_vram,
            max_shard_size=parse_size(max_shard_size, "--max-shard-size "),
            evaluate=evaluate,
            trust_remote_code=trust_remote_code,
            report=console.report,
        )
        console.result(plan_document(planned), plan_lines(planned))
        return 0
    if output is None:
        raise InputError("--output is required", hint="-o OUT")
    with resumable(console, output):
        result = artifacts.quantize(
            model,
            output,
            recipe=wanted,
            device=device,
            devices=devices,
            max_ram=max_ram,
            max_vram=max_vram,
            max_shard_size=parse_size(max_shard_size, "--max-shard-size "),
            evaluate=evaluate,
            baseline=baseline,
            trust_remote_code=trust_remote_code,
            report=console.report,
        )
    console.result(result.to_dict(), result_lines(result))
    return conclude(console, result.gates, result.undecided)


def _print_recipe(console: Console, recipe: "Recipe") -> int:
    from quantkit.recipes.loader import dump_recipe
    from quantkit.recipes.schema import document_of

    console.result(document_of(recipe), dump_recipe(recipe))
    return 0


def plan_document(plan: "Plan") -> dict[str, Any]:
    """The plan for JSON; `planned` in bytes and seconds."""
    from quantkit.cli.render.plan_document import run_document
    from quantkit.recipes.schema import document_of

    return {
        "recipe": document_of(plan.recipe),
        "modules": [
            {
                "name": each.linear.name,
                "shape": [each.linear.out_features, each.linear.in_features],
                "scheme": each.scheme.label() if each.scheme else None,
                "reason": each.reason,
            }
            for each in plan.dispositions
        ],
        "remarks": list(plan.remarks),
        "planned": run_document(plan),
    }


def plan_rows(plan: "Plan") -> list[tuple[object, ...]]:
    """Like linears in a row: name, shape, what they become, why, and how many there are."""
    rows: dict[tuple[str, str, str, str], int] = {}
    for each in plan.dispositions:
        linear = each.linear
        key = (
            family(linear.name),
            f"{linear.out_features} x {linear.in_features}",
            each.scheme.label() if each.scheme else "as it is",
            each.reason,
        )
        rows[key] = rows.get(key, 0) + 1
    return [(*key, count) for key, count in rows.items()]


def plan_lines(plan: "Plan") -> list[Part]:
    """The plan as a table of like linears, and what the run needs."""
    from quantkit.cli.render.plan import UNTIMED
    from quantkit.planning.run.estimate import summary

    lines: list[Part] = [table(("linear", "shape", "becomes", "", "count"), plan_rows(plan))]
    recipe = plan.recipe
    lines += [f"method {recipe.method}, format {recipe.format}", *plan.remarks]
    lines += [f"planned: {summary(plan)}"] if plan.files else []
    lines += [UNTIMED] if plan.time and plan.time.seconds is None else []
    return lines


COMMAND = quantize
