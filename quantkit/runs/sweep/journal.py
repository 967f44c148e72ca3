"""A sweep: one model, many recipes, and a journal from which an interrupted sweep resumes.

The folder contains `sweep.json` (the journal, which `report` reads), `reference/` and, for each
recipe, `runs/KEY/eval.json` and `runs/KEY/artifact/`.
"""

import fcntl
import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from quantkit.checkpoint import durable, files, strict_json
from quantkit.core.errors import InputError, QuantkitError, ResourceError
from quantkit.core.progress import Progress, Report, silent
from quantkit.core.recipe import Recipe
from quantkit.pipeline.calibrate import shareable
from quantkit.recipes.flags import flags_of
from quantkit.recipes.schema import document_of
from quantkit.results.file import read_result
from quantkit.results.schema import EVAL_FILE, SWEEP_FILE, EvalResult, SweepResult, SweepRun

RUNS = "runs"
ARTIFACT = "artifact"
LOCK = "lock"


@dataclass(frozen=True)
class Job:
    """One recipe of a sweep; `key` names its folder, `command` makes its artifact alone."""

    key: str
    label: str
    recipe: Recipe
    document: Mapping[str, Any]
    command: str
    calibration_sha256: str | None = None

    @property
    def sha256(self) -> str:
        """SHA-256 of the full recipe and of its calibration tokens."""
        text = json.dumps([self.document, self.calibration_sha256], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def entry(self, schemes: str | None = None, **found: Any) -> SweepRun:
        """The journal's entry of this job, labelled with the artifact's `schemes` if known."""
        return SweepRun(
            key=self.key,
            label=f"{self.recipe.name} {schemes}" if schemes else self.label,
            family=self.recipe.method,
            recipe=dict(self.document),
            recipe_sha256=self.sha256,
            command=self.command,
            **found,
        )


@dataclass(frozen=True)
class Attempt:
    """A job that runs on any machine and always returns its journal entry, also after an error.

    `execute(job, artifact)` makes the artifact and evaluates it.
    """

    folder: Path
    job: Job
    execute: Callable[[Job, Path], EvalResult]

    def __call__(self) -> SweepRun:
        """Run the job."""
        started, cpu = time.monotonic(), time.process_time()
        try:
            path = self.folder / RUNS / self.job.key / EVAL_FILE
            path.parent.mkdir(exist_ok=True)
            found = self.execute(self.job, path.with_name(ARTIFACT))
            write_json(path, found.to_dict())
        except QuantkitError as error:
            why = error.what + (f": {error.why}" if error.why else "")
            return self.failed(why, time.monotonic() - started)
        except Exception as error:  # noqa: BLE001 - a bug in one recipe must not end the others
            return self.failed(f"{type(error).__name__}: {error}", time.monotonic() - started)
        return self.job.entry(
            schemes=found.artifact.scheme,
            status="done",
            eval=str(path.relative_to(self.folder)),
            eval_sha256=files.sha256(path),
            summary=found.summary(),
            seconds=time.monotonic() - started,
            cpu_seconds=time.process_time() - cpu,
        )

    def failed(self, why: str, seconds: float | None = None) -> SweepRun:
        """The entry of a failed run."""
        return self.job.entry(status="failed", why=why, seconds=seconds)


class Runner(Protocol):
    """Runs the attempts of a sweep, here or on a cluster."""

    def __call__(self, attempts: Sequence[Attempt], /) -> Iterator[SweepRun]:
        """Call every attempt and yield the entries as they finish."""


def jobs_of(model: str, recipes: Iterable[Recipe]) -> tuple[Job, ...]:
    """A job for each recipe; `model` is the model's name in the jobs' commands.

    Raises:
        InputError: two recipes have the same label.
    """
    found: dict[str, Job] = {}
    for recipe in recipes:
        label = f"{recipe.name} {_grid(recipe)}"
        key = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-")
        shared = shareable(recipe)
        command = f"quantkit quantize {shlex.quote(model)} -o {key} {flags_of(shared)}"
        if key in found:
            raise InputError(
                f"recipe `{label}` is given twice",
                why="runs of a sweep are identified by recipe, bits and group size",
                hint="another `name:` in one of the recipe files",
            )
        found[key] = Job(key, label, recipe, document_of(shared), command)
    return tuple(found.values())


def _grid(recipe: Recipe) -> str:
    """`W4 g64 sym`, with `auto` if the group size depends on the model."""
    label = recipe.scheme.resolve(None).label()
    size = recipe.scheme.group_size
    return label.replace("channel", "auto") if size == "auto" else label


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make the sweep's folder, or lock an existing one, for this process.

    Raises:
        InputError: the folder contains other files.
        ResourceError: another process runs a sweep there.
    """
    journal = folder / SWEEP_FILE
    strange = folder.is_dir() and not (folder / LOCK).exists() and not journal.exists()
    if strange and any(folder.iterdir()):
        raise InputError(
            f"`{folder}` is not empty and contains no sweep", hint="another -o, or an empty folder"
        )
    with durable.io_errors(folder):
        (folder / RUNS).mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResourceError(
                f"another sweep is writing to `{folder}`",
                hint="wait for it to end, or choose another -o",
            ) from None
        yield
    finally:
        os.close(fd)


def require_same(folder: Path, model_sha256: str | None, workload: Mapping[str, Any]) -> None:
    """Check that a sweep in the folder, if any, has this model and this workload.

    Raises:
        InputError: model or workload differ, or the journal cannot be read.
    """
    path = folder / SWEEP_FILE
    if not path.exists():
        return
    old = read_result(path, SweepResult)
    for what, was, now in (
        ("model", old.model.sha256, model_sha256),
        ("workload", old.workload, workload),
    ):
        if was != now:
            raise InputError(
                f"`{folder}` contains a sweep of another {what}",
                why=_difference(was, now),
                hint="another -o",
            )


def _difference(was: Any, now: Any) -> str:
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        keys = [key for key in {**was, **now} if was.get(key) != now.get(key)]
        return "; ".join(f"{key} {was.get(key)} there, {now.get(key)} here" for key in keys)
    return f"{was} there, {now} here"


def resumed(folder: Path, fresh: SweepResult) -> SweepResult:
    """`fresh` with the finished runs of the folder's journal whose files are unchanged.

    Raises:
        InputError: model or workload differ, or the journal cannot be read.
    """
    require_same(folder, fresh.model.sha256, fresh.workload)
    path = folder / SWEEP_FILE
    if not path.exists():
        return fresh
    old = read_result(path, SweepResult)
    done = {run.recipe_sha256: run for run in old.runs if _is_unchanged(folder, run)}
    listed = {run.key for run in fresh.runs}
    kept = [run for run in old.runs if run.status == "failed" or _is_unchanged(folder, run)]
    others = [run for run in kept if run.key not in listed]
    runs = [done.get(run.recipe_sha256, run) for run in fresh.runs]
    return fresh.model_copy(update={"runs": runs + others, "created_utc": old.created_utc})


def _is_unchanged(folder: Path, run: SweepRun) -> bool:
    """Whether a run is done and its result has the recorded SHA-256."""
    if run.status != "done" or run.eval is None:
        return False
    path = folder / run.eval
    return path.is_file() and files.sha256(path) == run.eval_sha256


def run_sweep(
    folder: Path,
    jobs: Sequence[Job],
    start: SweepResult,
    execute: Callable[[Job, Path], EvalResult],
    runner: Runner,
    report: Report = silent,
) -> SweepResult:
    """Run the pending runs of `start`, and write each result to the journal when it finishes.

    A failed run is recorded with its reason and skipped; the next sweep into the folder tries it
    again.
    """
    sweep = start
    by_key = {job.key: job for job in jobs}
    waiting = [by_key[run.key] for run in start.runs if run.status == "pending"]
    _write(folder, sweep)
    total = len(waiting)
    if done := len(jobs) - total:
        report(Progress("continue", 1, 1, f"{done} of {len(jobs)} runs are done"))
    if waiting:
        report(Progress("sweep", 0, total))
    for count, run in enumerate(runner([Attempt(folder, job, execute) for job in waiting]), 1):
        runs = [run if run.key == known.key else known for known in sweep.runs]
        sweep = sweep.model_copy(update={"runs": runs})
        _write(folder, sweep)
        detail = f"{run.label}: {run.why or run.status}"
        report(Progress("sweep", count, total, detail))
    return sweep


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file, replacing an existing one atomically."""
    durable.replace_file(path, strict_json.dumps(document))


def _write(folder: Path, sweep: SweepResult) -> None:
    write_json(folder / SWEEP_FILE, sweep.model_dump(mode="json", by_alias=True))
