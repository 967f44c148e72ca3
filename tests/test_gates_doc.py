"""The workflow in docs/gates.md, run as far as that goes without a hosted runner."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quantkit.core.gate import BY_DOMAIN, FIGURES, parse_gate
from quantkit.core.limit import UNITS
from quantkit.model.embedded_model import FOLDER, HELDOUT
from quantkit.recipes.document import parse

DOC = (Path(__file__).parents[1] / "docs" / "gates.md").read_text(encoding="utf-8")
RECIPE, WORKFLOW = (
    parse(text, "gates.md").data for text in re.findall(r"```yaml\n(.*?)```", DOC, re.DOTALL)
)


def test_every_figure_unit_and_scope_is_named_and_no_other() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", DOC.partition("## Passed")[0], re.MULTILINE)
    assert set(re.findall(r"`([\w.]+)`", " ".join(rows))) == set(FIGURES)
    assert all(
        f"`{figure}`" in DOC.partition("`@domain` is available for")[2] for figure in BY_DOMAIN
    )
    assert {unit for unit in UNITS if unit[-1] != "B"} <= set(re.findall(r"`(\S+)`", DOC))


def test_every_gate_in_it_is_a_gate() -> None:
    texts = [*RECIPE["gates"], *re.findall(r"--gate '([^']+)'", DOC)]
    assert len(texts) > 10
    for text in texts:
        parse_gate(text)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The repository that the workflow is in, and a `quantkit` in its path."""
    (tmp_path / "ci").mkdir()
    few = (
        "name: ci\nextends: rtn\ncalibration: {samples: 1, sequence_length: 64}\n"
        "gates: [kl.mean <= 0.6]\ngate_policy: {undecided: fail}\n"
    )
    (tmp_path / "ci" / "recipe.yaml").write_text(few)
    lines = HELDOUT.read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "ci" / "held-out.jsonl").write_text("".join(lines[:24]), encoding="utf-8")
    command = tmp_path / "bin" / "quantkit"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m quantkit "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return tmp_path


def run(command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=folder,
        env=os.environ | {"MODEL": str(FOLDER), "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_the_workflow_passes_when_nothing_has_changed(checkout: Path) -> None:
    steps: list[dict[str, Any]] = WORKFLOW["jobs"]["gates"]["steps"]
    install, quantize, evaluate = (step["run"] for step in steps if "run" in step)
    assert install == "pip install quantkit-deploy"
    for command in (quantize, evaluate.replace("--baseline ci/eval.json ", "")):
        done = run(command, checkout)
        assert done.returncode == 0, done.stdout + done.stderr
    (checkout / "eval.json").rename(checkout / "ci" / "eval.json")
    again = run(evaluate, checkout)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "gates  8 passed" in again.stdout
    assert (checkout / "eval.json").is_file()
