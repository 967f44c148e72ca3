"""How long a run takes here, and what Python with torch holds: known from runs that finished here.

Nothing is guessed for a machine on which none did. Runs are kept in the user's cache folder by
processor, version of torch and number of threads; a run of another method or machine says nothing.
"""

import json
import os
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from quantkit.checkpoint.durable import replace_file
from quantkit.checkpoint.files import found_in, read_json
from quantkit.core.errors import QuantkitError

KEPT = 100
"""Runs that are remembered, the last ones."""
MOST = 10**24
"""Above any number of operations, seconds or bytes; far below what no float can hold."""
LARGER = 100
"""A rate says little of a run that is this many times as large."""
ALONE = 2.0
"""A single run may be this much off: its machine may have been busy, or idle."""
FOLDER = "QUANTKIT_CACHE"
"""The environment variable that names another folder than `~/.cache/quantkit`."""


@dataclass(frozen=True)
class PastRun:
    """A run that finished: its `operations` as `planning.run` counts them, and what they took."""

    machine: str
    method: str
    operations: int
    seconds: float
    base_rss_bytes: int


def machine_key() -> str:
    """What speeds and sizes of runs depend on, of the machine and its libraries."""
    name = found_in(Path("/proc/cpuinfo"), r"^model name\s*: (.+)$") or "unknown processor"
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return f"{name}, {threads} threads, torch {torch}"


def remember(run: PastRun) -> None:
    """Add a finished run to the cache; a cache that cannot be written is none."""
    kept = [*recall(), run][-KEPT:]
    with suppress(OSError, RuntimeError, QuantkitError):  # RuntimeError: no home
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps([asdict(each) for each in kept], indent=1).encode())


def recall() -> list[PastRun]:
    """All runs of the cache, of any machine, but for entries that no run can have left."""
    try:
        entries = read_json(_path())
    except (OSError, RuntimeError, QuantkitError):
        return []
    found = map(_past_run, entries[-KEPT:] if isinstance(entries, list) else ())
    return [run for run in found if run is not None]


def _past_run(entry: object) -> PastRun | None:
    """An entry of the cache as a run; None where a field is missing, or not what it should be."""
    if not isinstance(entry, dict) or entry.keys() != {field.name for field in fields(PastRun)}:
        return None
    machine, method, operations, seconds, base = (entry[f.name] for f in fields(PastRun))
    counts = all(type(n) is int and 0 < n < MOST for n in (operations, base))
    timed = type(seconds) in (int, float) and 0 < seconds < MOST
    named = isinstance(machine, str) and isinstance(method, str)
    return (
        PastRun(machine, method, operations, seconds, base) if counts and timed and named else None
    )


def seconds_range(
    operations: int, method: str, runs: Sequence[PastRun]
) -> tuple[float, float] | None:
    """Fewest and most seconds by the rates of this method's `runs`; None where there are none.

    Only runs at least 1 / LARGER as large count: small ones spend their time on other things.
    """
    near = [run for run in runs if run.method == method and LARGER * run.operations >= operations]
    rates = [run.seconds / run.operations for run in near]
    if not rates:
        return None
    slack = ALONE if len(rates) == 1 else 1.0
    return operations * min(rates) / slack, operations * max(rates) * slack


def base_bytes(runs: Sequence[PastRun]) -> int | None:
    """What Python with torch held before the runs, in the middle; None where there are none."""
    return round(statistics.median(run.base_rss_bytes for run in runs)) if runs else None


def _path() -> Path:
    folder = os.environ.get(FOLDER)
    return (Path(folder) if folder else Path.home() / ".cache" / "quantkit") / "runs.json"
