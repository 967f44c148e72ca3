import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quantkit.cli.commands.sweep import grid
from quantkit.core.errors import InputError
from quantkit.model.embedded_model import FOLDER
from quantkit.results.schema import SWEEP_FILE, SweepResult

SMALL = ["--samples", "4", "--set", "calibration.sequence_length=128", "--windows", "4"]
RECIPES = ["--recipes", "rtn,nf4", "--bits", "4,3", "--group-size", "64,96"]


def sweep(folder: Path) -> list[str]:
    command = [sys.executable, "-m", "quantkit", "sweep", str(FOLDER), "-o", str(folder)]
    return [*command, *RECIPES, *SMALL, "--json"]


def test_a_recipe_with_a_grid_of_its_own_comes_once() -> None:
    found = list(grid(["gptq", "nf4", "smoothquant"], ["4", "3"], ["64", "channel"]))
    assert found[:4] == [("gptq", b, g) for b in (4, 3) for g in ("64", "channel")]
    assert found[4:] == [("nf4", None, None), ("smoothquant", None, None)]
    assert list(grid(["rtn"], [], [])) == [("rtn", None, None)]


def test_wrong_lists_are_refused() -> None:
    with pytest.raises(InputError, match="--recipes is empty"):
        list(grid([], [], []))
    with pytest.raises(InputError, match="--bits four"):
        list(grid(["rtn"], ["four"], []))


@pytest.mark.long
def test_killed_it_goes_on_and_shares_the_reference(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    process = subprocess.Popen(sweep(folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not finished(folder):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    found = subprocess.run(sweep(folder), check=True, capture_output=True, text=True)
    assert "load: torch and transformers" in found.stderr
    assert " of 5 runs are done" in found.stderr

    swept = SweepResult.model_validate(json.loads(found.stdout))
    states = {run.label: run.status for run in swept.runs}
    assert states == {
        "original": "done",
        "rtn W4 g64 sym": "done",
        "rtn W3 g64 sym": "done",
        "nf4 NF4 g64": "done",
        "rtn W4 g96 sym": "failed",
        "rtn W3 g96 sym": "failed",
    }
    assert len(list((folder / "reference").iterdir())) == 1
    after = {path: path.stat().st_mtime_ns for path in before}
    kept = [path for path in before if "reference" in path.parts or "rtn-w4-g64-sym" in path.parts]
    assert len(kept) >= 2
    assert all(after[path] == before[path] for path in kept)
    for run in swept.runs[1:]:
        if run.status == "done":
            result = json.loads((folder / str(run.eval)).read_text())
            assert result["kl"]["mean"] > 0
            assert result["artifact"]["name"] == run.key
            assert len(result["modules"]["relative_output_error"]) == 6
        else:
            assert "96" in run.why


def finished(folder: Path) -> int:
    """Runs that the journal has as done, the original aside."""
    journal = folder / SWEEP_FILE
    runs = json.loads(journal.read_text())["runs"] if journal.exists() else []
    done: int = sum(run["status"] == "done" for run in runs)
    return done - bool(runs)
