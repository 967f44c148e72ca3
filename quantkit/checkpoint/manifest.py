"""The manifest in a folder that quantkit wrote."""

from pathlib import Path
from typing import Any

from quantkit.checkpoint.files import read_json
from quantkit.core.errors import QuantkitError
from quantkit.core.manifest import FILE_NAME


def read_manifest(folder: Path) -> dict[str, Any]:
    """The folder's manifest; empty where the file is missing or is not a valid manifest."""
    if not (folder / FILE_NAME).is_file():
        return {}
    try:
        found = read_json(folder / FILE_NAME)
    except QuantkitError:
        return {}
    modules = found.get("modules", []) if isinstance(found, dict) else None
    sound = isinstance(modules, list) and all(isinstance(module, dict) for module in modules)
    return found if sound and isinstance(found.get("recipe"), dict) else {}
