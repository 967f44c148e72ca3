"""A few of the cases as users run them: the command itself, imports and all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.hostile.scene import EVAL, Scene

START = 5.0
"""CPU seconds that Python and torch may take to begin, on a busy machine."""


def stray(scene: Scene) -> None:
    scene.put("model.layers.0.self_attn.q_proj.weight_scale", torch.ones(128, 1))


def wide(scene: Scene) -> None:
    scene.config(head_dim=10**9)


def blank(scene: Scene) -> None:
    scene.header(b"{" + b" " * 99_000_000 + b"}")


def piped(scene: Scene) -> None:
    (scene.model / "model.safetensors").unlink()
    os.mkfifo(scene.model / "model.safetensors")


@pytest.mark.parametrize(
    ("spoil", "code", "word"),
    [(stray, 4, "weight_scale"), (wide, 2, "head_dim"), (blank, 6, "header"), (piped, 2, "model")],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_commands(scene: Scene, tmp_path: Path, spoil: object, code: int, word: str) -> None:
    assert callable(spoil)
    spoil(scene)
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "quantkit", *EVAL]
    with (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(command, cwd=scene.home, env=environment, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    said = (tmp_path / "err").read_text(encoding="utf-8")
    assert process.returncode == code, said
    assert word in said
    assert "Traceback" not in said
    assert usage.ru_utime + usage.ru_stime < START + 5
    assert usage.ru_maxrss * 1024 < 1.5 * 2**30
    assert not list((tmp_path / "tmp").iterdir())
