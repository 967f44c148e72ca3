"""Quantize the embedded model with every method."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from quantkit.cli.console import Console, duration, size, table, with_error

EXAMPLES = """\b
Examples:
  quantkit demo
  quantkit demo --output artifacts --json
"""


def demo(
    console: Console,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Keep the artifacts in this folder.")
    ] = None,
) -> None:
    """Try every method on the embedded model.

    Needs neither network nor GPU; the table that it ends in compares the results.
    """
    from quantkit import api

    rows = api.demo(output, report=console.report)
    console.result(rows, demo_table(rows))


def demo_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a recipe: size, quality with standard errors, time."""
    head = ("recipe", "size", "bits/weight", "perplexity", "KL (nats)", "same top-1", "time")
    body = []
    for row in rows:
        agreement = row["top1_agreement"]
        body.append(
            (
                row["recipe"],
                size(row["bytes"]),
                f"{row['bits_per_weight']:.2f}",
                with_error(row["perplexity"], row["perplexity_standard_error"]),
                with_error(row["kl_mean"], row["kl_standard_error"]),
                "-" if agreement is None else f"{100 * agreement:.1f} %",
                duration(row["seconds"]),
            )
        )
    return table(head, body)


COMMAND = demo
