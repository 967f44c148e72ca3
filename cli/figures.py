"""Figures of an evaluation as lines for people."""

import math
from collections.abc import Mapping
from typing import Any

from quantkit.cli.console import with_error

FLOOR_FACTOR = 3  # a KL under this many noise floors cannot be told from the reference


def evaluation_lines(found: Mapping[str, Any]) -> list[str]:
    """Divergence, agreement and perplexity with their standard errors, then the notes."""
    kl = found.get("kl")
    lines = [_divergence(kl)] if kl else []
    lines.append("   ".join(_others(found)))
    protocol = found.get("protocol", {})
    place = f" of {protocol['text']}, protocol {protocol['name']}" if "text" in protocol else ""
    lines.append(f"on {found['tokens']} tokens{place}{_limits(found.get('detectable') or {})}")
    if kl and kl["mean"] is not None and kl["mean"] < FLOOR_FACTOR * (kl.get("floor_mean") or 0):
        lines.append("not distinguishable from the reference: under three times its own noise")
    if found.get("status", "valid") != "valid":
        lines.append("these figures are no measurement:")
    return [*lines, *found.get("notes", ())]


def _divergence(kl: Mapping[str, Any]) -> str:
    shown = [("p99", "p99"), ("p99.9", "p999"), ("max", "max"), ("noise", "floor_mean")]
    parts = [f"{name} {_short(kl[key])}" for name, key in shown if kl.get(key) is not None]
    mean = with_error(kl["mean"], kl.get("standard_error"))
    return "   ".join([f"KL     {mean} nats", *parts])


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
        sign = "+" if change >= 0 else ""
        spread = 100 * math.exp(ratio) * error if error else None
        parts.append(f"{sign}{with_error(change, spread)} % of the original's")
    return parts


def _limits(shows: Mapping[str, float]) -> str:
    """The smallest differences that the run could show."""
    limits = [
        f"{name} {100 * shows[key]:.2g} %"
        for name, key in (("KL", "kl_relative"), ("PPL", "log_ratio"))
        if shows.get(key)
    ]
    return f"; can show: {', '.join(limits)}" if limits else ""


def _short(value: float) -> str:
    return f"{value:.2g}"
