import json
import math

import pytest

from quantkit.cli.console import Console, duration, json_text, printable, table, with_error
from quantkit.core.progress import Progress


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")


def test_off_a_terminal_progress_is_plain_lines_and_not_too_many(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console()
    for done in range(1, 101):
        console.report(Progress("verify", done, 100, f"tensor {done}", 100.0 - done))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "verify 1/100  1 min 39 s left  tensor 1\nverify 100/100  tensor 100\n"


def test_on_a_terminal_progress_is_one_line_that_a_result_wipes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    console = Console()
    console.report(Progress("quantize", 1, 2, "x" * 100))
    console.report(Progress("quantize", 2, 2))
    console.result({}, "done")
    out, err = capsys.readouterr()
    assert out == "done\n"
    shown = err.split("\r\x1b[K")
    assert shown[0] == ""
    assert len(shown[1]) == 39
    assert shown[2:] == ["quantize 2/2", ""]
    assert "\n" not in err


def test_the_time_left_is_that_of_the_steps_so_far(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 1.0, 10.0, 20.0, 30.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    console = Console()
    for done in (0, 1, 2, 4):
        console.report(Progress("speed", done, 8))
    console.report(Progress("tasks", 4, 8))
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["speed 0/8", "speed 2/8  30 s left", "speed 4/8  20 s left", "tasks 4/8"]


def test_quiet_leaves_errors_and_results(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(quiet=True)
    console.report(Progress("quantize", 1, 1))
    console.note("a remark")
    console.result({}, "result")
    console.error({"message": "wrong", "why": None, "hint": None})
    assert capsys.readouterr() == ("result\n", "error: wrong\n")


def test_only_a_terminal_without_no_color_sees_colour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"message": "wrong", "why": None, "hint": None}
    on_terminal(monkeypatch)
    Console().error(document)
    assert "\x1b[1;31m" in capsys.readouterr().err
    monkeypatch.setenv("NO_COLOR", "1")
    Console().error(document)
    assert "\x1b[1" not in capsys.readouterr().err


def test_json_is_strict_whatever_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    Console(as_json=True).result({"a": math.nan, "b": [math.inf, 1.5], 3: "\u2028é"}, "text")
    out = capsys.readouterr().out
    assert json.loads(out, parse_constant=pytest.fail) == {
        "a": None,
        "b": [None, 1.5],
        "3": "\u2028é",
    }
    assert out.isascii()
    assert json.loads(json_text(())) == []


def test_control_characters_of_a_stranger_are_shown_not_obeyed() -> None:
    assert printable("a\x1b[2J\x07é\tb\n") == "a\\x1b[2J\\x07é\tb\n"


def test_a_table_is_aligned_and_numbers_are_flush_right() -> None:
    rows = [("a", 1.23456, None), ("long name", 10, "x")]
    assert table(("name", "loss", ""), rows) == (
        "name        loss\n"
        "a          1.235  -\n"
        "long name     10  x"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.04, "0.0 s"), (9.9, "9.9 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (7500, "2 h 05 min")],
)
def test_durations_are_short(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_a_figure_stands_with_its_error() -> None:
    assert with_error(27.71234, 1.234) == "27.7 +- 1.2"
    assert with_error(0.09126, 0.00312) == "0.0913 +- 0.0031"
    assert with_error(5000.0, 123.0) == "5000 +- 123"
    assert with_error(1.0, 0.0) == "1"
    assert with_error(27.71234, None) == "27.71"
    assert with_error(None, None) == "-"
