"""Whether a result may be written to a path: nothing that is not a result is written over."""

import shlex
from pathlib import Path

from quantkit.checkpoint.filenames import CONFIG, EDITED
from quantkit.checkpoint.files import read_json
from quantkit.core.errors import InputError, QuantkitError

REPORTS = (".html", ".csv")
"""Suffixes that only reports have beside a model."""
MOST = 2**26
"""Bytes of a result."""


def require_file(path: Path) -> None:
    """Check that `path` is free, or a file that a result may replace.

    Raises:
        InputError: it is a link, a device or a folder, or a file of a model.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a link" if path.is_symlink() else "no regular file"
        raise InputError(f"`{path}` is {kind}", hint="-o path/to/result.json")
    if path.exists() and (path.parent / CONFIG).exists() and not _is_result(path):
        raise InputError(
            f"`{path}` is a file of a model",
            why="a result would replace it",
            hint=f"-o {shlex.quote(str(path.with_stem(f'{path.stem}-evaluated')))}",
        )


def _is_result(path: Path) -> bool:
    """Whether an earlier evaluation or report is what a file beside a model contains."""
    if path.name in EDITED or path.suffix in REPORTS:
        return True
    try:
        found = read_json(path, MOST) if path.suffix == ".json" else None
    except QuantkitError:
        return False
    return isinstance(found, dict) and str(found.get("schema")).startswith("quantkit.eval/")


def require_outside(output: Path, source: Path, what: str = "quantized") -> None:
    """Check that `output`, of which `what` is a name, does not lie in the folder `source`.

    Raises:
        InputError: it does.
    """
    if output.resolve().is_relative_to(source.resolve()):
        raise InputError(
            f"`{output}` is inside the model's folder",
            why="quantkit reads the model while it writes the output",
            hint=f"-o {shlex.quote(f'{source.resolve()}-{what}')}",
        )
