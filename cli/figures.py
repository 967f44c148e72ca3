"""Figures of an evaluation as lines for people."""

from collections.abc import Mapping
from typing import Any

from quantkit.cli.console import with_error


def evaluation_lines(found: Mapping[str, Any]) -> list[str]:
    """Perplexity, divergence and agreement with their standard errors, then the notes."""
    perplexity = found["perplexity"]
    lines = [f"perplexity {with_error(perplexity['value'], perplexity.get('standard_error'))}"]
    reference = found.get("reference_perplexity")
    if reference is not None:
        value = reference["value"] if isinstance(reference, Mapping) else reference
        lines[0] += f", of the original {with_error(value, None)}"
    if kl := found.get("kl"):
        others = ", ".join(
            f"{name.replace('_', ' ')} {with_error(kl[name], None)}"
            for name in ("median", "p99", "max", "noise_floor")
            if name in kl
        )
        mean = with_error(kl["mean"], kl.get("standard_error"))
        lines.append(f"KL from the original {mean} nats per token ({others})")
    agreement = found.get("top1_agreement")
    if agreement is not None:
        lines.append(f"same likeliest token {100 * agreement:.1f} %")
    lines.append(f"on {found['tokens']} tokens")
    if found.get("status", "valid") != "valid":
        lines.append("these figures are no measurement:")
    return [*lines, *found.get("notes", ())]
