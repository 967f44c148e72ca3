"""Reads `eval.json` and `sweep.json`."""

import hashlib
import json
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from quantkit.core.errors import InputError, IntegrityError
from quantkit.results.record import Record
from quantkit.results.schema import EvalResult, SweepResult

Document = TypeVar("Document", bound=Record)

LARGEST = 2**26
"""Bytes; that of a model with 18,000 linears has 10 MB."""
_NOUNS: dict[type[Record], tuple[str, str]] = {
    EvalResult: (
        "evaluation result",
        "the eval.json of a run, or the output of `quantkit eval --json`",
    ),
    SweepResult: ("sweep journal", "a folder that `quantkit sweep` made"),
}


def read_result(path: Path, shape: type[Document], sha256: str | None = None) -> Document:
    """The document in a file; NaN and infinities become None.

    Raises:
        InputError: the file does not exist or contains another document.
        IntegrityError: its SHA-256 is not `sha256`.
    """
    noun, hint = _NOUNS[shape]
    if path.exists() and not path.is_file():
        raise InputError(f"`{path}` contains no {noun}", why="it is no regular file", hint=hint)
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except OSError as error:
        raise InputError(f"`{path}` contains no {noun}", why=error.strerror, hint=hint) from error
    if len(raw) > LARGEST:
        why = f"it is larger than {LARGEST:,} bytes"
        raise InputError(f"`{path}` contains no {noun}", why=why, hint=hint)
    if sha256 and hashlib.sha256(raw).hexdigest() != sha256:
        raise IntegrityError(
            f"`{path}` changed since the sweep wrote it",
            why="its SHA-256 differs from the journal's",
            hint="run the sweep again",
        )
    try:
        data = json.loads(raw, parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise InputError(f"`{path}` is not JSON", why=str(error), hint=hint) from error
    return validated(data, shape, path)


def validated(data: Any, shape: type[Document], path: Path) -> Document:
    """The validated document in `data`, which was read from `path`.

    Raises:
        InputError: `data` is invalid; the first five faults are listed.
    """
    noun, hint = _NOUNS[shape]
    try:
        return shape.model_validate(data)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5]]
        why = "\n".join(fault.removeprefix(": ") for fault in faults)
        raise InputError(f"`{path}` contains no valid {noun}", why=why, hint=hint) from None


def _finite(text: str) -> float | None:
    value = float(text)
    return value if isfinite(value) else None
