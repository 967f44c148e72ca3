import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from quantkit.core.errors import InputError, RefusedError, ResourceError
from quantkit.core.progress import Progress
from quantkit.recipes.loader import build_recipe
from quantkit.results.file import read_result
from quantkit.results.schema import (
    EVAL_FILE,
    SWEEP_FILE,
    EvalResult,
    Subject,
    SweepResult,
    SweepRun,
)
from quantkit.runs.sweep.journal import Attempt, Job, claimed, jobs_of, resumed, run_sweep
from quantkit.runs.sweep.runners import local

NAMES = ("rtn", "gptq", "awq", "nf4")


def jobs(*names: str) -> tuple[Job, ...]:
    return jobs_of("m", [build_recipe(name) for name in names or NAMES])


def fresh(jobs: Sequence[Job], model: str = "a" * 64) -> SweepResult:
    runs = [job.entry(status="pending") for job in jobs]
    return SweepResult(schema="quantkit.sweep/1", model=Subject(name="m", sha256=model), runs=runs)


def result(kl: float = 0.1) -> EvalResult:
    protocol = {
        "name": "documents", "text": "smoke", "tokens_sha256": "0", "windows": 1,
        "sequence_length": 8,
    }  # fmt: skip
    return EvalResult.model_validate(
        {
            "schema": "quantkit.eval/1", "artifact": {"name": "x"}, "protocol": protocol,
            "tokens": 7, "perplexity": {"value": 2.0}, "kl": {"mean": kl},
        }
    )  # fmt: skip


def states(sweep: SweepResult) -> dict[str, str]:
    return {run.family: run.status for run in sweep.runs}


def test_a_finished_run_is_labelled_by_the_group_size_that_was_taken(tmp_path: Path) -> None:
    def execute(_: Job, __: Path) -> EvalResult:
        found = result()
        subject = found.artifact.model_copy(update={"scheme": "W4 g64 sym"})
        return found.model_copy(update={"artifact": subject})

    (job,) = jobs("rtn")
    assert job.entry(status="pending").label == "rtn W4 auto sym"
    (tmp_path / "runs").mkdir()
    assert Attempt(tmp_path, job, execute)().label == "rtn W4 g64 sym"


def test_keys_tell_runs_apart() -> None:
    found = jobs_of(
        "m",
        [
            build_recipe("gptq", bits=bits, group_size=size, **kind)  # type: ignore[arg-type]
            for bits in (4, 3)
            for size in (64, "channel", None)
            for kind in ({}, {"symmetric": False})
        ],
    )
    assert len({job.key for job in found}) == len(found) == 12
    assert found[0].key == "gptq-w4-g64-sym"
    assert len({job.sha256 for job in found}) == 12
    with pytest.raises(InputError, match="is given twice"):
        jobs("gptq", "gptq")


def test_no_path_is_told(tmp_path: Path) -> None:
    text = tmp_path / "mine.txt"
    text.write_text("words")
    (job,) = jobs_of("m", [build_recipe("rtn", calibration=str(text))])
    assert job.recipe.calibration.text == str(text)
    assert str(tmp_path) not in job.entry(status="pending").model_dump_json()
    assert (
        job.command == "quantkit quantize m -o rtn-w4-auto-sym --recipe rtn --calibration mine.txt"
    )


def test_failures_are_recorded_and_passed_over(tmp_path: Path) -> None:
    def execute(job: Job, artifact: Path) -> EvalResult:
        if job.recipe.method == "gptq":
            raise RefusedError("no", why="because")
        if job.recipe.method == "awq":
            raise ZeroDivisionError("oh")
        assert artifact.parent.is_dir()
        return result()

    with claimed(tmp_path):
        swept = run_sweep(tmp_path, jobs(), fresh(jobs()), execute, local.run)
    assert states(swept) == {"rtn": "done", "gptq": "failed", "awq": "failed", "nf4": "done"}
    assert [run.why for run in swept.runs] == ["", "no: because", "ZeroDivisionError: oh", ""]
    assert read_result(tmp_path / SWEEP_FILE, SweepResult) == swept

    again = resumed(tmp_path, fresh(jobs()))
    assert states(again) == {"rtn": "done", "gptq": "pending", "awq": "pending", "nf4": "done"}


def test_a_changed_result_is_measured_again(tmp_path: Path) -> None:
    swept = run_sweep(tmp_path, jobs(), fresh(jobs()), lambda *_: result(), ready(tmp_path))
    (tmp_path / str(swept.runs[1].eval)).write_text("{}")
    again = resumed(tmp_path, fresh(jobs()))
    assert states(again) == {"rtn": "done", "gptq": "pending", "awq": "done", "nf4": "done"}


def test_runs_of_earlier_recipes_stay(tmp_path: Path) -> None:
    run_sweep(tmp_path, jobs("rtn"), fresh(jobs("rtn")), lambda *_: result(), ready(tmp_path))
    again = resumed(tmp_path, fresh(jobs("gptq")))
    assert states(again) == {"gptq": "pending", "rtn": "done"}


def test_a_continued_sweep_says_so(tmp_path: Path) -> None:
    told: list[Progress] = []
    for recipes in (("rtn",), ("rtn", "gptq")):
        told.clear()
        start = resumed(tmp_path, fresh(jobs(*recipes)))
        run_sweep(
            tmp_path, jobs(*recipes), start, lambda *_: result(), ready(tmp_path), told.append
        )
    assert told[0] == Progress("continue", 1, 1, "1 of 2 runs are done")
    assert {progress.total for progress in told if progress.stage == "sweep"} == {1}


def test_another_model_is_refused(tmp_path: Path) -> None:
    run_sweep(tmp_path, jobs("rtn"), fresh(jobs("rtn")), lambda *_: result(), ready(tmp_path))
    with pytest.raises(InputError, match="another model"):
        resumed(tmp_path, fresh(jobs("rtn"), model="b" * 64))


def test_the_folder_is_claimed(tmp_path: Path) -> None:
    taken = pytest.raises(ResourceError, match="another sweep")
    with claimed(tmp_path / "new"), taken, claimed(tmp_path / "new"):
        pass
    with claimed(tmp_path / "new"):
        pass
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="contains no sweep"), claimed(tmp_path / "mine"):
        pass
    (tmp_path / "new" / SWEEP_FILE).write_text('{"runs": 3}')
    with pytest.raises(InputError, match="no valid sweep journal"):
        read_result(tmp_path / "new" / SWEEP_FILE, SweepResult)


def ready(folder: Path) -> Callable[[Sequence[Attempt]], Iterator[SweepRun]]:
    (folder / "runs").mkdir(exist_ok=True)
    return local.run


def _killed_in(folder: Path, method: str) -> None:
    def execute(job: Job, _: Path) -> EvalResult:
        if job.recipe.method == method:
            os.kill(os.getpid(), signal.SIGKILL)
        with (folder / "calls").open("a") as calls:
            calls.write(job.recipe.method + "\n")
        return result()

    with claimed(folder):
        run_sweep(folder, jobs(), resumed(folder, fresh(jobs())), execute, local.run)


@pytest.mark.long
def test_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    context = multiprocessing.get_context("spawn")
    for method in ("awq", "nf4", "none"):
        process = context.Process(target=_killed_in, args=(folder, method))
        process.start()
        process.join(60)
        assert process.exitcode == (0 if method == "none" else -signal.SIGKILL)
    assert (folder / "calls").read_text().split() == ["rtn", "gptq", "awq", "nf4"]
    journal = json.loads((folder / SWEEP_FILE).read_text())
    assert [run["status"] for run in journal["runs"]] == ["done"] * 4
    assert (folder / "runs" / "rtn-w4-auto-sym" / EVAL_FILE).is_file()
