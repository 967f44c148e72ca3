import inspect
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.core import registry
from quantkit.core.errors import (
    HubError,
    InputError,
    IntegrityError,
    QuantkitError,
    RefusedError,
    ResourceError,
)
from quantkit.core.progress import Progress, Report

Outcome = tuple[int, str, str]
Call = Callable[..., Outcome]
VERBS = registry.names("cli.commands")
HEAVY = ("torch", "numpy", "transformers", "rich", "safetensors", "huggingface_hub", "ruamel")
HELPS = [["--help"], *([verb, "--help"] for verb in VERBS), ["recipes", "list", "--help"]]


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def raising(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("quantkit.recipes.loader.list_recipes", raising)


@pytest.mark.parametrize("arguments", HELPS, ids=" ".join)
def test_help_loads_nothing_heavy(
    arguments: list[str], child: Callable[[list[str]], "subprocess.CompletedProcess[str]"]
) -> None:
    code = (
        "import sys; from quantkit.cli.main import run\n"
        f"assert run({arguments!r}) == 0\n"
        f"print('loaded:', [m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = child(["-c", code])
    assert done.returncode == 0, done.stderr
    assert "Usage: quantkit" in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_help_starts_within_three_times_bare_typer(tmp_path: Path) -> None:
    bare = (
        "import typer; app = typer.Typer(rich_markup_mode=None)\n"
        "@app.command()\ndef f(x: int = 1) -> None: 'f'\napp(['--help'])"
    )

    def seconds(*arguments: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, cwd=tmp_path, check=True)
        return time.perf_counter() - start

    ours = min(seconds("-m", "quantkit", "--help") for _ in range(5))
    assert ours < 3 * min(seconds("-c", bare) for _ in range(5))


def test_every_verb_states_two_examples_and_the_common_options(quantkit: Call) -> None:
    assert {"quantize", "eval", "generate", "demo", "recipes", "doctor"} <= set(VERBS)
    for verb in VERBS:
        code, out, _ = quantkit(verb, "--help")
        assert code == 0
        assert out.count(f"\n    quantkit {verb}") >= 2
        if verb != "recipes":
            assert all(option in out for option in ("--json", "--quiet", "--debug", "--help"))


def test_the_help_of_all_verbs_lists_each_with_a_whole_sentence(quantkit: Call) -> None:
    code, out, _ = quantkit("--help")
    assert code == 0
    for verb in VERBS:
        line = next(line for line in out.splitlines() if line.strip().startswith(f"{verb} "))
        assert line.endswith(".")
        assert not line.endswith("...")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("what", why="why", hint="hint"), 2),
        (RefusedError("what", why="why", hint="hint"), 4),
        (ResourceError("what", why="why", hint="hint"), 5),
        (IntegrityError("what", why="why", hint="hint"), 6),
        (HubError("what", why="why", hint="hint"), 7),
        (QuantkitError("what", why="why", hint="hint"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_three_lines_and_one_document(
    error: QuantkitError, code: int, quantkit: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, error)
    lines = "error: what\nwhy\ntry: hint\n"
    assert quantkit("recipes", "list") == (code, "", lines)
    found = quantkit("recipes", "list", "--json")
    assert (found[0], found[2]) == (code, lines)
    assert json.loads(found[1]) == {
        "error": {
            "code": code,
            "kind": type(error).__name__,
            "message": "what",
            "why": "why",
            "hint": "hint",
        }
    }


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (MemoryError(), 5, "not enough memory"),
        (OSError(28, "No space left on device", "f"), 5, "No space left on device: f"),
        (PermissionError(13, "Permission denied", "f"), 5, "Permission denied: f"),
        (ConnectionResetError("reset"), 7, "the network failed"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate"),
            5,
            "not enough memory",
        ),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA"), 5, "not enough memory"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_machine_lacks_is_no_bug(
    error: Exception, code: int, told: str, quantkit: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, error)
    found = quantkit("recipes", "list")
    assert found[0] == code
    assert found[2].startswith(f"error: {told}\n")


def test_a_bug_says_where_its_log_is(
    quantkit: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fail_with(monkeypatch, ZeroDivisionError("of\x1b[2J all"))
    code, out, err = quantkit("recipes", "list")
    (log,) = tmp_path.glob("quantkit-*.log")
    assert (code, out) == (1, "")
    assert str(log) in err
    assert "\x1b" not in err
    assert "Traceback" not in err
    assert "ZeroDivisionError" in log.read_text(encoding="utf-8")
    assert "Traceback" in quantkit("recipes", "list", "--debug")[2]


def test_an_error_wipes_the_line_of_progress(
    quantkit: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, report: Report, **__: object) -> None:
        report(Progress("evaluate", 1, 2))
        raise InputError("what", hint="hint")

    monkeypatch.setattr("quantkit.api.evaluation.evaluate", failing)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    wiped, _, left = quantkit("eval", "out")[2].rpartition("\x1b[2K")
    assert "1/2" in wiped
    assert re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", left) == "error: what\ntry: hint\n"


def test_ctrl_c_is_130(quantkit: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    assert quantkit("recipes", "list") == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["quantise"], "quantize"),
        (["eval"], "ARTIFACT"),
        (["quantize", "m", "--bit", "4"], "--bits"),
        (["quantize", "m", "--bits", "four"], "--bits"),
        (["recipes", "shwo"], "show"),
    ],
)
def test_wrong_usage_is_2_and_names_the_nearest(
    arguments: list[str], told: str, quantkit: Call
) -> None:
    code, out, err = quantkit(*arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert "\ntry: quantkit" in err
    code, out, _ = quantkit(*arguments, "--json")
    assert code == 2
    assert json.loads(out)["error"]["kind"] == "UsageError"


def test_nothing_stated_shows_the_help_and_is_wrong_usage(quantkit: Call) -> None:
    code, out, _ = quantkit()
    assert code == 2
    assert "Commands:" in out


def test_the_version_is_the_packages_own(quantkit: Call) -> None:
    from quantkit import __version__

    assert quantkit("--version") == (0, f"quantkit {__version__}\n", "")


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    late = "import time; time.sleep(1)\nfrom quantkit.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", late, "recipes", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def test_a_verb_has_at_most_a_dozen_options_beyond_those_scripts_rely_on() -> None:
    for verb in VERBS:
        command = registry.load("cli.commands", verb, "COMMAND")
        for function in command.values() if isinstance(command, dict) else (command,):
            count = len(inspect.signature(function).parameters)
            most = {"quantize": 24, "eval": 20, "plan": 19, "sweep": 14, "fit": 18}
            assert count <= most.get(verb, 12), verb
