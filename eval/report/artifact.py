"""What the manifest of an artifact tells a report: figures, errors of modules, the command."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

SETTINGS = ("format", "scheme", "options", "overrides", "calibration", "gates", "engines")
BLOCK_LINEAR = re.compile(r"\.(\d+)\.(?:.*\.)?(\w+)$")


def result_of(manifest: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The evaluation in the manifest with what the manifest knows better; None where there is none.

    Modules bring the relative output error that quantization recorded, where evaluation has none.
    """
    measured = manifest.get("evaluation")
    if not measured:
        return None
    recipe, source = manifest.get("recipe") or {}, manifest.get("source") or {}
    own = {
        "bytes": manifest.get("bytes"),
        "bits_per_weight": manifest.get("bits_per_weight"),
        "method": recipe.get("method"),
        "format": manifest.get("format"),
    }
    stated = {k: v for k, v in (measured.get("artifact") or {}).items() if v is not None}
    told = {key: value for key, value in measured.items() if value}
    if not (told.get("modules") or {}).get("columns"):
        told["modules"] = modules_of(manifest.get("modules") or ())
    return {
        "environment": manifest.get("environment") or {},
        "reference": {"name": str(source.get("id") or "the original")},
        **told,
        "artifact": {**own, **stated, "name": name},
    }


def modules_of(modules: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Losses by block and kind of linear; where a block has several of a kind, the worst."""
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
    return {"columns": columns, "relative_output_error": rows}


def command_of(manifest: Mapping[str, Any]) -> str:
    """The command that makes such an artifact again, every setting stated."""
    recipe, source = manifest.get("recipe") or {}, manifest.get("source") or {}
    if "method" not in recipe:
        return ""
    model = str(source.get("id") or "MODEL")
    if source.get("revision"):
        model += f"@{source['revision']}"
    words = ["quantkit", "quantize", model, "-o", "OUT", "--method", str(recipe["method"])]
    for key in SETTINGS:
        if recipe.get(key):
            words += ["--set", f"{key}={json.dumps(recipe[key])}"]
    return shlex.join(words)
