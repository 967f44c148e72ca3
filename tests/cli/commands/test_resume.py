"""Real processes that get signals: they end in time, with their code, and go on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

QUANTKIT = [sys.executable, "-m", "quantkit"]
QUICK = ["--samples", "16", "--sequence-length", "128", "--device", "cpu", "--no-eval"]
DEADLINE = 240
INSTALLED = """
import signal
for number in stopping.SIGNALS:  # what runs in the background may have been told to ignore some
    signal.signal(number, signal.default_int_handler)
stopping.install()
"""


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command as a shell does; what still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def start(command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def wait_for(path: Path, size: int, process: subprocess.Popen[str]) -> None:
    """Wait until a file has so many lines."""
    deadline = time.monotonic() + DEADLINE
    while not path.exists() or path.read_bytes().count(b"\n") < size:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stopped_run_says_how_it_goes_on_and_does(
    started: Callable[..., subprocess.Popen[str]],
    tiny_checkpoint: Callable[..., Path],
    tmp_path: Path,
) -> None:
    model = tiny_checkpoint("llama", num_hidden_layers=12)
    output, journal = tmp_path / "out", tmp_path / "out.journal" / "journal.jsonl"
    command = [*QUANTKIT, "quantize", str(model), "-o", str(output), "--method", "gptq", *QUICK]
    process = started(command)
    wait_for(journal, 1, process)
    second = started(command)  # while the first one runs
    _, said = second.communicate(timeout=DEADLINE)
    assert second.returncode == 5
    assert "another run is writing to" in said

    wait_for(journal, 2, process)
    sent = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=DEADLINE)
    assert time.monotonic() - sent < 10
    assert process.returncode == 75, said
    assert "finished blocks that are kept: " in said
    assert "Traceback" not in said
    assert not output.exists()

    resumed = started([*QUANTKIT, "resume", str(output)])
    _, said = resumed.communicate(timeout=DEADLINE)
    assert resumed.returncode == 0, said
    assert " of 12 blocks are done" in said
    assert [path.name for path in tmp_path.iterdir()] == ["out"]

    again = started([*QUANTKIT, "resume", str(output)])
    told, _ = again.communicate(timeout=DEADLINE)
    assert (again.returncode, told) == (0, f"{output} is complete\n")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_work_that_cannot_go_on_ends_with_the_signal(number: int, code: int) -> None:
    program = (
        """
import os, sys, time
from quantkit.cli import main, stopping
from quantkit.recipes import loader
def listed():
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(30)
loader.list_recipes = listed
"""
        + INSTALLED
        + """
sys.exit(main.run(["recipes", "list"]))
"""
    )
    command = [sys.executable, "-c", program, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code
    assert "interrupted\n" in done.stderr


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once_and_the_first_within_its_time(
    started: Callable[..., subprocess.Popen[str]], tmp_path: Path, second: int
) -> None:
    program = (
        """
import sys, time
from pathlib import Path
from quantkit.cli import stopping
from quantkit.cli.console import Console
"""
        + INSTALLED
        + """
stopping.GRACE = 1.0 if sys.argv[2] == "alone" else 60.0
with stopping.resumable(Console(), Path(sys.argv[1])):
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("ready", flush=True)
        time.sleep(60)  # what a long computation does with the first signal
"""
    )
    for alone in ("alone", "with another"):
        command = [sys.executable, "-c", program, str(tmp_path / "out"), alone]
        process = started(command)
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.stdout.readline()
        if alone != "alone":
            process.send_signal(second)
        _, said = process.communicate(timeout=30)
        assert process.returncode == (75 if alone == "alone" else 128 + second), said
        assert said.startswith("stopping; once more to stop at once\n")
