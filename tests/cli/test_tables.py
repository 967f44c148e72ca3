import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.cli.tables import flush, printable, rendered, table


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def test_control_characters_of_a_stranger_are_shown_not_obeyed() -> None:
    assert printable("a\x1b[2J\x07é\tb\n") == "a\\x1b[2J\\x07é\tb\n"
    assert str(table(("name",), [("a\x1b[2J\n[red]b",)])) == "name\na\\x1b[2J\\n[red]b"
    assert rendered(["[bold]x[/] :smile: \x1b[2J"]) == "[bold]x[/] :smile: \\x1b[2J\n"


def test_a_table_is_aligned_and_numbers_are_flush_right() -> None:
    rows = [("a", 1.23456, None), ("long name", 10, "x")]
    assert str(table(("name", "loss", ""), rows)) == (
        "name        loss\n"
        "a          1.235  -\n"
        "long name     10  x"
    )  # fmt: skip
    assert str(flush(("", "GiB"), [("a", 1.0), ("b", "10")])) == "   GiB\na  1.0\nb   10"


words = st.text(st.characters(codec="utf-8"), max_size=300)


@given(st.lists(st.tuples(words, words), max_size=5))
def test_off_a_terminal_a_row_is_one_line_and_no_cell_is_cut(rows: list[tuple[str, str]]) -> None:
    lines = rendered([table(("one", "two"), rows)]).split("\n")[:-1]
    assert len(lines) == len(rows) + 1
    for line, row in zip(lines[1:], rows, strict=True):
        for cell in row:
            shown = printable(cell).replace("\n", "\\n").replace("\t", "\\t")
            assert shown.strip(" ") in line


@pytest.mark.parametrize("width", [80, 100])
def test_on_a_terminal_nothing_is_wider_than_it_and_all_words_are_there(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    long = " ".join(f"word{n}" for n in range(40))
    out = rendered([table(("name", "size", "why"), [("a" * 30, 12.5, long)]), long], Terminal())
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out)
    assert max(map(len, plain.splitlines())) <= width
    assert "a" * 30 in plain
    assert all(plain.count(f"word{n}") for n in range(40))
    assert out.count("\x1b[1m") >= 1


def test_a_command_is_never_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    command = "next: quantkit quantize " + "x" * 40 + " -o " + "y" * 40
    out = re.sub(r"\x1b\[[0-9;]*m", "", rendered([command], Terminal()))
    assert out == command + "\n"
