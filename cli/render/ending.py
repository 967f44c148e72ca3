"""What to do with a finished artifact."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from quantkit.core import registry

if TYPE_CHECKING:
    from quantkit.core.engine import Engine

PREFERRED = "vllm"
"""The engine of `plan` and `fit` unless another is named."""


def next_lines(folder: Path, engines: Mapping[str, str | None]) -> list[str]:
    """The command that serves the folder, where an engine's rules pass, and one that tries it.

    `engines` maps names to why an engine does not load the folder, None where it does.
    """
    quoted = shlex.quote(str(folder))
    loading = [name for name, reason in engines.items() if reason is None]
    found: list[Engine] = [registry.load("engines", name, "ENGINE") for name in loading]
    commands = {engine.name: f"{engine.serve} {quoted}" for engine in found if engine.serve}
    tried = f'quantkit generate {quoted} "Once upon a time"'
    if not commands:
        return [f"next: {tried}"]
    return [f"next: {commands.get(PREFERRED) or min(commands.values())}", f"or: {tried}"]
