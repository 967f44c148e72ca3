"""A finished run as text."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quantkit.cli.render.ending import next_lines
from quantkit.cli.render.figures import evaluation_lines
from quantkit.cli.render.gates import gate_lines
from quantkit.cli.tables import Part, Table, table
from quantkit.core.units import duration, size

if TYPE_CHECKING:
    from quantkit.runs.produce import QuantizeResult


def result_lines(result: "QuantizeResult") -> list[Part]:
    """The closing table, what the run cost, and what to do next."""
    from quantkit.core.manifest import bits_text

    cost = result.cost
    bits = bits_text(result.quantized_bits_per_weight, result.bits_per_weight)
    lines: list[Part] = [module_table(result.modules)]
    if result.evaluation:
        lines += ["", *evaluation_lines(result.evaluation.to_dict())]
    recipe = result.recipe
    lines += ["", f"method {recipe['method']}, format {recipe['format']}", *result.remarks]
    lines += [
        f"{result.output}: {size(result.bytes)}, {bits}",
        *_beside_plan(result),
        f"the whole run took {duration(cost.seconds)}, {duration(cost.cpu_seconds)} of CPU, "
        f"{size(cost.peak_rss_bytes)} peak memory",
        *next_lines(result.output, result.engines),
        *gate_lines([gate.model_dump() for gate in result.gates]),
    ]
    return lines


def _beside_plan(result: "QuantizeResult") -> list[str]:
    """What quantizing took beside what was planned; nothing where it could not be planned."""
    from quantkit.core.units import span

    planned, measured = result.planned, result.measured
    if "peak_rss_bytes" not in planned:
        return []
    took = f"quantizing took {duration(measured['seconds'])}"
    if "least_seconds" in planned:
        took += f" (planned {span((planned['least_seconds'], planned['most_seconds']))})"
    peak = f"{size(measured['peak_rss_bytes'])} peak memory"
    return [f"{took}, {peak} (planned {size(planned['peak_rss_bytes'])})"]


def module_table(modules: Sequence[Mapping[str, Any]]) -> Table:
    """Linears of one kind in a row: scheme, typical and worst loss, fallbacks taken."""
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for module in modules:
        kinds.setdefault((family(module["name"]), str(module["scheme"])), []).append(module)
    rows = []
    for (kind, scheme), members in kinds.items():
        losses = sorted(m["loss"] for m in members if m.get("loss") is not None)
        middle, worst = (losses[len(losses) // 2], losses[-1]) if losses else (None, None)
        noted = sum(bool(m.get("notes")) for m in members)
        rows.append((kind, scheme, len(members), middle, worst, noted or ""))
    head = ("linear", "scheme", "count", "median loss", "worst loss", "with notes")
    columns = len(head) if any(row[-1] for row in rows) else len(head) - 1
    return table(head[:columns], [row[:columns] for row in rows])


def family(name: str) -> str:
    """The module's name with `*` for block and expert numbers."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
