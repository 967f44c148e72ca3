"""What a manifest says of each quantized linear, as a map of blocks and kinds of linears."""

import re
from collections.abc import Collection, Mapping
from statistics import median
from typing import Any

from quantkit.results.quality import ExpertTokens, Modules

BLOCK_LINEAR = re.compile(r"\.(\d+)\.(?:.*\.)?(\w+)$")


def error_map(
    modules: Collection[Mapping[str, Any]], tokens: Mapping[str, Any] | None = None
) -> Modules:
    """Losses of a manifest's modules by block and kind; the largest of several of one kind.

    `tokens` are the manifest's `expert_tokens`.
    """
    found: dict[int, dict[str, float]] = {}
    for module in modules:
        place = BLOCK_LINEAR.search(str(module.get("name")))
        if place is None or module.get("loss") is None:
            continue
        row = found.setdefault(int(place[1]), {})
        kind = place[2].removesuffix("_proj")
        row[kind] = max(row.get(kind, 0.0), float(module["loss"]))
    columns = list(dict.fromkeys(kind for row in found.values() for kind in row))
    rows = [[found.get(i, {}).get(c) for c in columns] for i in range(max(found, default=-1) + 1)]
    experts = expert_tokens(modules, tokens or {})
    return Modules(columns=columns, relative_output_error=rows, experts=experts)


def expert_tokens(
    modules: Collection[Mapping[str, Any]], tokens: Mapping[str, Any]
) -> ExpertTokens | None:
    """Tokens of the experts of all layers; None where there are none.

    An expert had few where a note on one of its modules says how few reached it.
    """
    counts = [int(count) for layer in tokens.values() for count in layer]
    if not counts:
        return None
    few = {
        str(module["name"]).rpartition(".")[0]
        for module in modules
        if any("reached this expert" in str(note) for note in module.get("notes") or ())
    }
    return ExpertTokens(
        count=len(counts),
        least=min(counts),
        median=median(counts),
        most=max(counts),
        few=len(few),
        unreached=counts.count(0),
    )
