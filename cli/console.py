"""All printing: results on stdout, everything else on stderr."""

import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shutil import get_terminal_size
from typing import Any, TextIO

from quantkit.core.progress import Progress

PLAIN_LINE_SECONDS = 5.0
LIVE_LINE_SECONDS = 0.1
SOON = 2.0
BROKEN_PIPE = 141


@dataclass(frozen=True)
class Begun:
    """When the work on a stage was first heard of, and how far it was then."""

    time: float
    done: int

    def seconds_left(self, progress: Progress, now: float) -> float | None:
        """What is left at the pace so far; None in the first two seconds."""
        steps, seconds = progress.done - self.done, now - self.time
        if steps <= 0 or seconds < SOON:
            return None
        return seconds / steps * (progress.total - progress.done)


class Console:
    """Where a command prints; it knows whether people or programs are reading.

    Progress is one line rewritten on a terminal, and a plain line every few seconds elsewhere. If
    the work does not tell how long is left, that is told from the pace of its stage so far.
    `options` are those of the verb: remedies name no others.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.options: frozenset[str] = frozenset()
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = False
        self._stage = ""
        self._next = 0.0
        self._begun = Begun(0.0, 0)

    def report(self, progress: Progress) -> None:
        """Show how far the work is; cheap enough to be called for every tensor."""
        now = time.monotonic()
        ended = progress.done >= progress.total
        if progress.stage != self._stage or progress.done < self._begun.done:
            self._begun = Begun(now, progress.done)
        if self.quiet or (now < self._next and not ended and progress.stage == self._stage):
            return
        self._stage = progress.stage
        self._next = now + (LIVE_LINE_SECONDS if self._live else PLAIN_LINE_SECONDS)
        if progress.seconds_left is None:
            progress = replace(progress, seconds_left=self._begun.seconds_left(progress, now))
        line = printable(_progress_line(progress))
        if self._live:
            room = get_terminal_size().columns - 1
            _write(sys.stderr, f"\r\x1b[K{line[:room]}")
            self._shown = True
        else:
            _write(sys.stderr, line + "\n")

    def note(self, text: str) -> None:
        """A line for people, unless they asked for quiet."""
        self._clear()
        if not self.quiet:
            _write(sys.stderr, printable(text) + "\n")

    def result(self, document: Any, text: str) -> None:
        """What the command was for: one JSON document, or text."""
        self._clear()
        body = json_text(document) if self.as_json else printable(text)
        _write(sys.stdout, body.rstrip("\n") + "\n")

    def piece(self, text: str) -> None:
        """A part of a text result, as soon as it is known."""
        self._clear()
        _write(sys.stdout, printable(text))

    def error(self, document: Mapping[str, Any]) -> None:
        """What went wrong: lines for people, and a document on stdout for programs."""
        self._clear()
        if self.as_json:
            _write(sys.stdout, json_text({"error": document}) + "\n")
        colour = self._live and "NO_COLOR" not in os.environ
        word = "\x1b[1;31merror:\x1b[0m" if colour else "error:"
        lines = [f"{word} {printable(document['message'])}"]
        if document["why"]:
            lines.append(printable(document["why"]))
        if document["hint"]:
            lines.append(f"try: {printable(document['hint'])}")
        _write(sys.stderr, "\n".join(lines) + "\n")

    def _clear(self) -> None:
        if self._shown:
            _write(sys.stderr, "\r\x1b[K")
            self._shown = False


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Aligned columns with two blanks between; a column of numbers is flush right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(head), *cells]) for i in range(len(head))]
    right = [any(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]
    lines = [
        "  ".join(
            text.rjust(width) if flush else text.ljust(width)
            for text, width, flush in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [list(head), *cells]
    ]
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """`0.8 s`, `42 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return (
        f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
    )


def with_error(value: float | None, error: float | None) -> str:
    """`27.7 +- 1.2`, to two figures of the error, or `-` where nothing was measured."""
    if value is None:
        return "-"
    if not error:
        return f"{value:.4g}"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} +- {error:.{decimals}f}"


def printable(text: str) -> str:
    """The text without control characters: a model's names and texts may hold terminal codes."""
    return "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


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


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else printable(str(value))


def _progress_line(progress: Progress) -> str:
    line = f"{progress.stage} {progress.done}/{progress.total}"
    if progress.seconds_left is not None and progress.done < progress.total:
        line += f"  {duration(progress.seconds_left)} left"
    return f"{line}  {progress.detail}" if progress.detail else line


def _write(stream: TextIO, text: str) -> None:
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        # the interpreter flushes once more at its end, and nobody is left to read it
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise SystemExit(BROKEN_PIPE) from None


def flush(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table whose columns are flush right, but for the first."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    whole = [
        [row[0], *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))] for row in cells
    ]
    return table(whole[0], whole[1:])
