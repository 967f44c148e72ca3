"""The error of every quantized linear, as a map of blocks and kinds of linears."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from quantkit.eval.results import Modules


def error_map(modules: Sequence[Mapping[str, Any]]) -> Modules:
    """A row per block and a column per kind, from a manifest's modules; None where there is none.

    Names are split at their first number: `model.layers.3.mlp.up_proj` is block 3, `mlp.up_proj`.
    """
    losses: dict[int, dict[str, float | None]] = {}
    columns: dict[str, None] = {}
    for module in modules:
        found = re.fullmatch(r".*?\.(\d+)\.(.+)", module["name"])
        if found is None:
            continue
        columns[found[2]] = None
        losses.setdefault(int(found[1]), {})[found[2]] = module.get("loss")
    rows = [[losses[block].get(column) for column in columns] for block in sorted(losses)]
    return Modules(columns=list(columns), relative_output_error=rows)
