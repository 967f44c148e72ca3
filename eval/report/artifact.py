"""What a report takes from the manifest of an artifact: figures, module errors, the command."""

import shlex
from collections.abc import Mapping
from typing import Any

from quantkit.core.errors import InputError
from quantkit.recipes.document import Document
from quantkit.recipes.flags import flags_of
from quantkit.recipes.schema import recipe_of
from quantkit.results.error_map import error_map


def result_of(manifest: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """The evaluation in the manifest, completed by the manifest; None where there is none.

    Modules bring the relative output error that quantization recorded, where evaluation has none.
    """
    measured = manifest.get("evaluation")
    if not measured:
        return None
    recipe, source = manifest.get("recipe") or {}, manifest.get("source") or {}
    own = {
        "bytes": manifest.get("bytes"),
        "bits_per_weight": manifest.get("bits_per_weight"),
        "quantized_bits_per_weight": manifest.get("quantized_bits_per_weight"),
        "method": recipe.get("method"),
        "format": manifest.get("format"),
    }
    stated = {k: v for k, v in (measured.get("artifact") or {}).items() if v is not None}
    kept = {key: value for key, value in measured.items() if value}
    if not (kept.get("modules") or {}).get("columns"):
        kept["modules"] = error_map(
            manifest.get("modules") or (), manifest.get("expert_tokens")
        ).model_dump()
    return {
        "environment": manifest.get("environment") or {},
        "reference": {"name": str(source.get("id") or "the original")},
        **kept,
        "artifact": {**own, **stated, "name": name},
    }


def command_of(manifest: Mapping[str, Any]) -> str:
    """The command that makes such an artifact again; empty where the manifest states no recipe."""
    recipe, source = manifest.get("recipe") or {}, manifest.get("source") or {}
    try:
        flags = flags_of(recipe_of(Document(dict(recipe), {})))
    except InputError:
        return ""
    model = str(source.get("id") or "MODEL")
    if source.get("revision"):
        model += f"@{source['revision']}"
    return f"quantkit quantize {shlex.quote(model)} -o OUT {flags}"
