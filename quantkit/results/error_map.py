"""The error of every quantized linear, as a map of blocks and kinds of linears."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from quantkit.results.schema import Modules

BLOCK_LINEAR = re.compile(r"\.(\d+)\.(?:.*\.)?(\w+)$")


def error_map(modules: Iterable[Mapping[str, Any]]) -> Modules:
    """Losses of a manifest's modules by block and kind; the largest of several of one kind."""
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
    return Modules(columns=columns, relative_output_error=rows)
