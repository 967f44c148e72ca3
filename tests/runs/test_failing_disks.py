"""Disks that fill or fail and files that vanish in mid-run: one error, and it goes on later."""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quantkit.cli.main import run
from tests.runs.test_resume import content

QUICK = ["--samples", "4", "--sequence-length", "64", "--no-eval", "--device", "cpu"]
SHARES = [0.02, 0.3, 0.6, 0.95]
"""Where in a run it fails, by the calls that it makes."""


class Failing:
    """A function of `os` that fails from its n-th call on; 0: never."""

    def __init__(self, name: str, folder: Path, number: int) -> None:
        self.real: Callable[..., Any] = getattr(os, name)
        self.folder, self.error, self.calls, self.first = str(folder), number, 0, 0

    def __call__(self, fd: int, *arguments: Any) -> Any:
        if str(Path(f"/proc/self/fd/{fd}").readlink()).startswith(self.folder):
            self.calls += 1
            if self.first and self.calls >= self.first:
                self.fail()
        return self.real(fd, *arguments)

    def fail(self) -> None:
        raise OSError(self.error, os.strerror(self.error))

    def at(self, share: float, total: int) -> None:
        self.calls, self.first = 0, max(1, round(share * total))

    def mend(self) -> None:
        self.first = 0


class Vanishing(Failing):
    """The same; the file that is read is gone, and so is each read of another one."""

    def fail(self) -> None:
        weights = Path(self.folder) / "model.safetensors"
        if weights.exists():
            weights.rename(weights.with_name("away"))

    def mend(self) -> None:
        super().mend()
        away = Path(self.folder) / "away"
        if away.exists():
            away.rename(away.with_name("model.safetensors"))


@pytest.fixture
def model(tiny_checkpoint: Callable[..., Path]) -> Path:
    return tiny_checkpoint("llama", private=True, dtype="bfloat16", num_hidden_layers=4)


def fails_and_goes_on(
    command: list[str],
    failing: Failing,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    shares: Sequence[float] = SHARES,
) -> None:
    """Count the calls of a whole run; then fail at some of them, and go on each time."""
    assert run([*command, "-o", str(tmp_path / "whole")]) == 0
    total, whole = failing.calls, content(tmp_path / "whole")
    there, resumed = {path.name for path in tmp_path.iterdir()}, 0
    for share in shares:
        capsys.readouterr()
        failing.at(share, total)
        code, said = run([*command, "-o", str(tmp_path / "out")]), capsys.readouterr().err
        assert code == 5, said
        assert said.count("error: ") == 1
        assert "Traceback" not in said
        assert "internal" not in said
        assert not (tmp_path / "out").exists()
        failing.mend()
        again = [*command, "-o", str(tmp_path / "out")]
        if (tmp_path / "out.journal").exists():
            again, resumed = ["resume", str(tmp_path / "out")], resumed + 1
        assert run(again) == 0, capsys.readouterr().err
        assert content(tmp_path / "out") == whole
        shutil.rmtree(tmp_path / "out")
        assert {path.name for path in tmp_path.iterdir()} == there
    assert resumed


def test_a_full_disk(
    model: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing("pwrite", tmp_path, errno.ENOSPC)
    monkeypatch.setattr(os, "pwrite", failing)
    fails_and_goes_on(["quantize", str(model), *QUICK], failing, tmp_path, capsys)


def test_a_source_that_cannot_be_read(
    model: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing("preadv", model, errno.EIO)
    monkeypatch.setattr(os, "preadv", failing)
    fails_and_goes_on(["quantize", str(model), *QUICK], failing, tmp_path, capsys)


def test_a_source_that_vanishes(
    model: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Vanishing("preadv", model, 0)
    monkeypatch.setattr(os, "preadv", failing)
    opened = SHARES[1:]  # before, a folder without weights is no model folder
    fails_and_goes_on(["quantize", str(model), *QUICK], failing, tmp_path, capsys, opened)
