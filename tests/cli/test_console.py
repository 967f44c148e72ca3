import json
import math

import pytest

from quantkit.cli.console import Console, json_text
from quantkit.core.progress import Progress

WRONG = {"message": "wrong", "why": None, "hint": None}


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make both streams a terminal of 80 columns that shows colours."""
    for variable in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")


def test_off_a_terminal_progress_is_plain_lines_and_not_too_many(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console()
    for done in range(1, 101):
        console.report(Progress("verify", done, 100, f"tensor {done}"))
    out, err = capsys.readouterr()
    assert (out, err) == ("", "[   0 s] verify 100/100, took 0.0 s\n")


def test_on_a_terminal_progress_is_a_bar_that_a_result_wipes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    console = Console()
    console.report(Progress("plan", 1, 1, "1 GB of weights"))
    console.report(Progress("quantize", 1, 2, "a\x1b[2Jb" + "x" * 100))
    console.result({}, "done")
    out, err = capsys.readouterr()
    assert out == "done\n"
    assert "plan: 1 GB of weights" in err
    assert "1/2" in err
    assert "a\\x1b[2Jbx" in err
    assert "x" * 80 not in err
    assert "\x1b[2J" not in err
    assert err.rindex("\x1b[2K") > err.rindex("1/2")


def test_a_dumb_terminal_has_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb")
    Console().report(Progress("quantize", 2, 2))
    Console().error(WRONG)
    err = capsys.readouterr().err
    assert err == "[   0 s] quantize 2/2, took 0.0 s\nerror: wrong\n"


def test_quiet_leaves_errors_and_results(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(quiet=True)
    console.report(Progress("quantize", 1, 1))
    console.note("a remark")
    console.result({}, "result")
    console.error(WRONG)
    assert capsys.readouterr() == ("result\n", "error: wrong\n")


def test_only_a_terminal_without_no_color_sees_colour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_terminal(monkeypatch)
    Console().error(WRONG)
    assert "\x1b[1;31merror:" in capsys.readouterr().err
    monkeypatch.setenv("NO_COLOR", "1")
    Console().error(WRONG)
    assert "\x1b[1;31m" not in capsys.readouterr().err
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    Console().error(WRONG)
    assert "\x1b" not in capsys.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")
    Console().error(WRONG)
    assert "\x1b[1;31merror:" in capsys.readouterr().err


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
