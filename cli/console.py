"""All printing: results on stdout, everything else on stderr."""

import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from quantkit.cli.progress import Bars, Lines, display
from quantkit.cli.tables import Part, printable, rendered
from quantkit.core.progress import Progress

BROKEN_PIPE = 141


class Console:
    """Where a command prints; it knows whether people or programs are reading.

    `options` are those of the verb: remedies name no others.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.options: frozenset[str] = frozenset()
        self._display: Lines | Bars | None = None

    def report(self, progress: Progress) -> None:
        """Show how far the work is; cheap enough to be called for every tensor."""
        if self.quiet:
            return
        if self._display is None:
            self._display = display(_write_line, time.monotonic)
        self._display.report(progress)

    def note(self, text: str) -> None:
        """A line for people, unless they asked for quiet."""
        self.close()
        if not self.quiet:
            _write_line(text + "\n")

    def result(self, document: Any, text: str | Sequence[Part]) -> None:
        """What the command was for: one JSON document, or text as it stands or in parts."""
        self.close()
        if self.as_json:
            _write(sys.stdout, json_text(document) + "\n")
        elif isinstance(text, str):
            _write(sys.stdout, printable(text).rstrip("\n") + "\n")
        else:
            _write(sys.stdout, rendered(text, sys.stdout))

    def piece(self, text: str) -> None:
        """A part of a text result, as soon as it is known."""
        self.close()
        _write(sys.stdout, printable(text))

    def error(self, document: Mapping[str, Any]) -> None:
        """What went wrong: lines for people, and a document on stdout for programs."""
        self.close()
        if self.as_json:
            _write(sys.stdout, json_text({"error": document}) + "\n")
        lines = [f"error: {document['message']}"]
        if document["why"]:
            lines.append(document["why"])
        if document["hint"]:
            lines.append(f"try: {document['hint']}")
        _write(sys.stderr, rendered(lines, sys.stderr))

    def close(self) -> None:
        """Take off the screen what shows progress."""
        if self._display is not None:
            self._display.close()
            if isinstance(self._display, Bars):
                self._display = None


def json_text(document: Any) -> str:
    """Strict JSON: what is not a finite number is null."""
    return json.dumps(_finite(document), indent=2, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _write_line(text: str) -> None:
    _write(sys.stderr, printable(text))


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        # the interpreter flushes once more at its end, and nobody is left to read it
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise SystemExit(BROKEN_PIPE) from None
