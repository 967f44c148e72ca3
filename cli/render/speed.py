"""Speed and memory as lines for people."""

from collections.abc import Mapping
from typing import Any

MIB = 1 << 20


def speed_lines(found: Mapping[str, Any]) -> list[str]:
    """A line for each concurrency in an engine, each cell in this process, and memory."""
    lines = [_engine(load) for load in found["speed"]["engine"]]
    lines += [_local(cell) for cell in found["speed"]["local"]]
    parts = found["memory"]["parts_bytes"]
    if parts:
        named = ", ".join(f"{name} {held / MIB:.1f}" for name, held in parts.items())
        lines.append(f"memory in MiB: {named}")
    return lines


def _local(cell: Mapping[str, Any]) -> str:
    size = f"{cell['batch']} x {cell['context_tokens']} tokens"
    if cell["fault"]:
        return f"{size}: {cell['fault']}"
    figures = [
        f"{phase} {cell[f'{phase}_tokens_per_s']:.4g}{_ratio(cell[f'{phase}_ratio'])}"
        for phase in ("prefill", "decode")
    ]
    original = f"; original: {cell['reference_fault']}" if cell["reference_fault"] else ""
    return f"{size}: {', '.join(figures)} tokens/s with {cell['kernel']}{original}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f" ({value:.2f} x)"


def _engine(load: Mapping[str, Any]) -> str:
    times = ", ".join(
        f"{name.upper()} {load[f'{name}_p50_ms']:.3g} ms (p99 {load[f'{name}_p99_ms']:.3g})"
        for name in ("ttft", "itl")
        if load[f"{name}_p50_ms"] is not None
    )
    failed = f", {load['failed_requests']} failed" if load["failed_requests"] else ""
    return (
        f"{load['engine']} at {load['concurrency']}: {load['output_tokens_per_s']:.4g} tokens/s, "
        f"{times}{failed} with {load['kernel'] or 'an unnamed kernel'}"
    )
