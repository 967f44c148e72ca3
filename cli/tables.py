"""Tables and lines for people: laid out by rich for a terminal, aligned plain text elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text

WIDE = 1_000_000
"""Columns of what is no terminal: nothing is wrapped or cut there."""
GAP = 2
"""Columns between two cells on a terminal."""
COMMANDS = ("next:", "or:", "try:")
"""How a line begins that holds a command to copy: it is never wrapped by words."""
STYLES = {
    "ok": "green",
    "passed": "green",
    "undecided": "yellow",
    "failed": "bold red",
    "refused": "red",
    "FAULT": "bold red",
}
"""Cells that have a colour where there are colours."""


@dataclass(frozen=True)
class Table:
    """Cells as text; `right` marks the columns that are flush right. `str()` is the plain form."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]

    def __str__(self) -> str:
        return rendered([self])[:-1]


Part = str | Table
"""What a text result consists of: lines (which may hold line breaks of their own) and tables."""


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table whose columns of numbers are flush right."""
    numbers = [any(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]
    return _table(head, rows, numbers)


def flush(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table whose columns are flush right, but for the first; numbers have all their digits."""
    cells = [[None if value is None else str(value) for value in row] for row in rows]
    return _table(head, cells, [index > 0 for index in range(len(head))])


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[bool]) -> Table:
    cells = tuple(tuple(_cell(value) for value in row) for row in rows)
    return Table(tuple(_cell(name) for name in head), cells, tuple(right))


def printable(text: str) -> str:
    """The text without control characters: a model's names and texts may hold terminal codes."""
    return "".join(
        c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else printable(str(value))
    return text.replace("\n", "\\n").replace("\t", "\\t")  # a row is one line


def rendered(parts: Sequence[Part], stream: TextIO | None = None) -> str:
    """The parts as `stream` takes them: with rules, wrapped cells and colours on a terminal.

    rich decides about colours (`NO_COLOR`, `FORCE_COLOR`, `TERM`). Without a stream, plain text.
    """
    from rich.console import Console

    terminal = stream is not None and stream.isatty()
    console = Console(
        file=stream,
        width=None if terminal else WIDE,
        color_system="auto" if stream is not None else None,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with console.capture() as captured:
        for part in parts:
            if isinstance(part, Table):
                console.print(_laid_out(part, console.width if terminal else None))
            else:
                copied = part.startswith(COMMANDS) or "\n" in part
                console.print(_line(part), soft_wrap=copied or not terminal)
    return "".join(f"{line.rstrip(' ')}\n" for line in captured.get().split("\n")[:-1])


def _line(text: str) -> "Text":
    from rich.text import Text

    line = Text(printable(text))
    word = text.split(" ", 1)[0]
    if word in COMMANDS:
        line.stylize("bold cyan", 0, len(word))
    elif word == "error:":
        line.stylize("bold red", 0, len(word))
    return line


def _laid_out(found: Table, width: int | None) -> "RichTable":
    """For a terminal of `width` columns, or plain without one."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    terminal = width is not None
    widths = [max(map(len, column)) for column in zip(found.head, *found.rows, strict=True)]
    narrow = width is not None and sum(widths) + GAP * len(widths) > width
    laid = RichTable(
        box=SIMPLE_HEAD if terminal else None,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0) if terminal else (0, 2, 0, 0),
        header_style="bold" if terminal else "",
    )
    for index, (name, flushed) in enumerate(zip(found.head, found.right, strict=True)):
        words = [*name.split(), *(row[index] for row in found.rows)]
        laid.add_column(
            Text(name),
            justify="right" if flushed else "left",
            no_wrap=not terminal,
            overflow="fold",
            # the words of a heading stand below each other before any name is broken
            max_width=max(map(len, words), default=1) if narrow and flushed else None,
        )
    for row in found.rows:
        laid.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    return laid
