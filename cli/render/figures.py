"""Figures of an evaluation as lines for people."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quantkit.cli.tables import Part, Table, table
from quantkit.core.units import duration, size, with_error

if TYPE_CHECKING:
    from quantkit.results.schema import SweepRun, Triage
    from quantkit.results.summary import Summary

WORST = 8  # blocks shown of a triage; --json has all


def evaluation_lines(found: Mapping[str, Any]) -> list[str]:
    """Divergence, agreement and perplexity with their standard errors, then the notes."""
    kl = found.get("kl")
    lines = [_divergence(kl)] if kl else []
    lines.append("   ".join(_others(found)))
    lines += [_metric(figure) for figure in found.get("metrics", {}).values()]
    protocol = found.get("protocol", {})
    place = f" of {protocol['text']}, protocol {protocol['name']}" if "text" in protocol else ""
    lines.append(f"on {found['tokens']} tokens{place}{_limits(found.get('detectable') or {})}")
    level = found.get("kl_level")
    if level:
        lines += [level["meaning"], *(f"try: {step}" for step in level["next"])]
    if found.get("status", "valid") != "valid":
        lines.append("these figures are not valid:")
    return [*lines, *found.get("notes", ())]


def _divergence(kl: Mapping[str, Any]) -> str:
    shown = [("p99", "p99"), ("p99.9", "p999"), ("max", "max"), ("noise", "floor_mean")]
    parts = [f"{name} {_short(kl[key])}" for name, key in shown if kl.get(key) is not None]
    mean = with_error(kl["mean"], kl.get("standard_error"))
    return "   ".join([f"KL     {mean} nats", *parts])


def _metric(figure: Mapping[str, Any]) -> str:
    """A figure of a metric that has no line of its own: label, value, error and unit."""
    scale, unit = 1, figure["unit"]
    if unit in ("fraction", "number"):
        scale, unit = (100, "%") if unit == "fraction" else (1, "")
    value, spread = (
        None if figure.get(key) is None else scale * figure[key]
        for key in ("value", "standard_error")
    )
    return f"{figure['label']}  {with_error(value, spread)} {unit}".rstrip()


def _others(found: Mapping[str, Any]) -> list[str]:
    """Agreement, perplexity and its change."""
    parts = []
    agreement = found.get("top1_agreement")
    if agreement is not None:
        error = found.get("top1_standard_error")
        share = with_error(100 * agreement, 100 * error if error else None)
        parts.append(f"top-1  {share} %")
    perplexity = found["perplexity"]
    parts.append(f"PPL {with_error(perplexity['value'], perplexity.get('standard_error'))}")
    ratio, error = (perplexity.get(key) for key in ("log_ratio", "log_ratio_standard_error"))
    if ratio is not None:
        change = 100 * math.expm1(ratio)
        spread = 100 * math.exp(ratio) * error if error else None
        where = "above" if change >= 0 else "below"
        parts.append(f"{with_error(abs(change), spread)} % {where} the original's")
    return parts


def _limits(shows: Mapping[str, float]) -> str:
    """The smallest differences that the run could show."""
    limits = [
        f"{name} {100 * shows[key]:.2g} %"
        for name, key in (("KL", "kl_relative"), ("PPL", "log_ratio"))
        if shows.get(key)
    ]
    return f"; detectable: {', '.join(limits)}" if limits else ""


def _short(value: float) -> str:
    return f"{value:.2g}"


def sweep_table(runs: Sequence["SweepRun"]) -> Table:
    """A row for each run, best first among those that were measured."""
    ordered = sorted(runs, key=lambda run: (run.status != "done", run.summary.kl_mean or 0))
    further = {name: f.label for run in runs for name, f in run.summary.metrics.items()}
    head = ["recipe", "size", "bits (all)", "KL, nats", "same top-1", "perplexity"]
    head += [*further.values(), "time", ""]
    return table(head, [_row(run, tuple(further)) for run in ordered])


def _row(run: "SweepRun", further: Sequence[str]) -> tuple[object, ...]:
    found = run.summary
    share = found.top1_agreement
    return (
        run.label,
        "-" if found.bytes is None else size(found.bytes),
        _bits(found),
        with_error(found.kl_mean, found.kl_standard_error),
        "-" if share is None else f"{100 * share:.1f} %",
        with_error(found.perplexity, found.perplexity_standard_error),
        *(
            with_error(figure.value, figure.standard_error) if figure else "-"
            for figure in map(found.metrics.get, further)
        ),
        "-" if run.seconds is None else duration(run.seconds),
        run.why or ("gates missed" if found.gates_missed else ""),
    )


def _bits(found: "Summary") -> str:
    """Bits of a weight in the quantized linears, in brackets over the whole model."""
    own, whole = found.quantized_bits_per_weight, found.bits_per_weight
    if whole is None:
        return "-"
    return f"({whole:.2f})" if own is None else f"{own:.2f} ({whole:.2f})"


def triage_lines(found: "Triage | None") -> list[Part]:
    """The parts that carry most of the divergence, worst first, each alone and restored."""
    if found is None:
        return []
    worst = sorted(found.blocks, key=lambda share: -share.only)[:WORST]
    parts = [*sorted(found.kinds, key=lambda share: -share.only), *worst]
    rows = [
        (
            share.name,
            with_error(share.only, share.only_standard_error),
            with_error(share.restored, share.restored_standard_error),
        )
        for share in parts
    ]
    head = ("part", "KL, only this quantized", "KL, only this restored")
    return [
        "",
        table(head, rows),
        f"KL with all quantized: {found.whole:.4g}, on {found.windows} windows",
    ]
