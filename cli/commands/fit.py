"""Choose bits so that the weights fit, and prove that it was worth it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    parse_tokens,
)
from quantkit.cli.render.ending import next_lines
from quantkit.cli.stopping import resumable
from quantkit.cli.tables import Part, Table, table
from quantkit.core.errors import InputError
from quantkit.core.units import size

if TYPE_CHECKING:
    from quantkit.results.fit_result import Fit, FitPoint
    from quantkit.runs.produce import QuantizeResult

EXAMPLES = """\b
Examples:
  quantkit fit org/name --gpu 4090 --context 32k --batch 4 -o out
  quantkit fit ./model --size 5.5GB --engine transformers --bits 3,4,8 -o out
"""
SHOWN = 12
"""Points of the frontier in the table; --json has more."""


def fit(
    console: Console,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model folder or hub id org/name[@revision].")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder for the artifact.")],
    weights: Annotated[
        str | None,
        typer.Option("--size", metavar="SIZE", help="Maximum size of all weight files: 5.5GB."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="GPU that holds weights and KV cache, in place of --size; as in plan."),
    ] = None,
    context: Annotated[str | None, typer.Option(help="Tokens in a sequence, as in plan.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Concurrent sequences.")] = 1,
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks, one GPU each.")] = 1,
    engine: Annotated[
        str, typer.Option(help=f"Engine that loads the result: {entries('engines')}.")
    ] = "vllm",
    bits: Annotated[str, typer.Option(metavar="N,...", help="Candidate bit widths.")] = (
        "2,3,4,5,6,7,8"
    ),
    group_size: Annotated[
        str,
        typer.Option(metavar="N|channel,...", help="Candidate group sizes of integers."),
    ] = "32,64,128,channel",
    grid: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="Candidate grids: int, fp8, mxfp8, mxfp4, nvfp4."),
    ] = "int,nvfp4",
    calibration: Calibration = None,
    samples: Samples = None,
    device: Device = "auto",
    max_vram: MaxVram = None,
    max_ram: MaxRam = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Choose bits per module so that the weights fit a budget."""
    from quantkit.api import artifacts
    from quantkit.recipes.loader import build_recipe

    recipe = build_recipe(calibration=calibration, samples=samples)
    with resumable(console, output):
        result = artifacts.fit(
            model,
            output,
            size=weights,
            gpu=gpu,
            context=None if context is None else parse_tokens(context),
            batch=batch,
            tp=tp,
            engine=engine,
            bits=[_number(word, "--bits", "--bits 4,8") for word in _listed(bits)],
            group_sizes=[
                None
                if word == "channel"
                else _number(word, "--group-size", "--group-size 32,channel")
                for word in _listed(group_size)
            ],
            grids=_listed(grid),
            calibration=recipe.calibration,
            device=device,
            max_ram=max_ram,
            max_vram=max_vram,
            trust_remote_code=trust_remote_code,
            report=console.report,
        )
    console.result(result.to_dict(), fit_lines(result))
    return 0


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _number(word: str, option: str, hint: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise InputError(f"{option} {word}: expected comma-separated numbers", hint=hint)
    return int(word)


def fit_lines(result: "QuantizeResult") -> list[Part]:
    """The frontier, what was compared and shipped, and how the shipped build measures."""
    from quantkit.cli.render.figures import evaluation_lines
    from quantkit.core.manifest import bits_text

    bits = bits_text(result.quantized_bits_per_weight, result.bits_per_weight)
    found = result.evaluation.fit if result.evaluation else None
    lines: list[Part] = [frontier_table(found), "", *_verdict(found)] if found else []
    if result.evaluation:
        lines += ["", *evaluation_lines(result.evaluation.to_dict())]
    lines += [
        "",
        *result.remarks,
        f"{result.output}: {size(result.bytes)}, {bits}",
        *next_lines(result.output, result.engines),
    ]
    return lines


def frontier_table(found: "Fit") -> Table:
    """Bytes against expected and measured KL: mixed, uniform, and what was built."""
    step = max(1, len(found.frontier) // SHOWN)
    rows = [(point, "mixed") for point in found.frontier[::step]]
    rows += [(point, point.name) for point in found.uniforms]
    built = [(found.mixed, "mixed, built"), (found.uniform, "built")]
    for point, name in built:
        if point is not None:
            rows = [row for row in rows if not point.name or row[0].name != point.name]
            rows.append((point, f"{point.name} {name}".strip()))
    rows.sort(key=lambda row: row[0].bytes)
    head = ("", "size", "fits", "KL expected", "KL measured")
    return table(head, [_row(point, name, found.budget_bytes) for point, name in rows])


def _row(point: "FitPoint", name: str, budget: int) -> tuple[object, ...]:
    fits = "yes" if point.bytes <= budget else ""
    return name, size(point.bytes), fits, point.kl, point.measured_kl


def _verdict(found: "Fit") -> list[str]:
    lines = []
    if served := found.served:
        lines.append(
            f"{served.gpu}: of {size(served.memory_bytes)} the cache of {served.batch} x "
            f"{served.context:,} tokens takes {size(served.cache_bytes)}, {found.engine} "
            f"{size(served.other_bytes)}, which leaves {size(found.budget_bytes)} to the weights"
        )
    lines += [f"shipped: the {found.shipped} build, {found.why}"]
    if found.difference is not None and found.difference_ci95 is not None:
        low, high = found.difference_ci95
        lines.append(
            f"mixed less uniform: {found.difference:+.2g} nats, 95 % between {low:+.2g} and "
            f"{high:+.2g}, on {found.windows} windows of calibration text"
        )
    if found.active_bytes is not None:
        lines.append(f"a token reads {size(found.active_bytes)} of them")
    proven = f"{100 * found.gap:.2g} %" if found.gap > 1e-9 else "nothing"
    lines.append(
        f"{found.bytes:,} of {found.budget_bytes:,} bytes; the choice is within {proven} of the "
        "least expected KL"
    )
    return lines


COMMAND = fit
