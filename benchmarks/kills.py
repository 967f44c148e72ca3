"""Kill runs at every write, rename and fsync and at random moments, resume them, compare the bytes.

    python benchmarks/kills.py MODEL FOLDER [--every] [--random 100] [--full 20] [--case gptq] ...

A process loads torch once and forks each run, which is a real one: it kills itself (SIGKILL) in the
middle of its n-th write, or before its n-th rename, fsync or the like; or it is killed from outside
after a random time. With --full the disk is full instead: from the n-th call on every write fails
(ENOSPC), and the run must end with 5; with --mount (as root) that disk is a small one of its own,
in memory, and a file takes what is free before the n-th call. The same command is then run again,
undisturbed. Prints a line for each case.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

QUICK = ["--samples", "4", "--sequence-length", "64", "--no-eval", "--device", "cpu"]
SHARDS = ["--max-shard-size", "200kB"]
COMPENSATED = ["--method", "gptq", "--set", "calibration.compensate=true"]
CASES: dict[str, list[str]] = {
    **{
        method: ["quantize", "--method", method, *QUICK, *SHARDS]
        for method in ("rtn", "gptq", "awq", "nf4", "smoothquant")
    },
    "compensated": ["quantize", *COMPENSATED, *QUICK, *SHARDS],
    "blind": ["quantize", "--method", "rtn", *QUICK, *SHARDS, "--samples", "0"],
    "evaluated": ["quantize", "--method", "rtn", *QUICK[:4], "--eval", "--device", "cpu"],
    "fit": ["fit", "--samples", "4", "--bits", "4,8", "--group-size", "64", "--device", "cpu"],
}
WATCHED = (
    "write", "pwrite", "fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "ftruncate",
    "posix_fallocate",
)  # fmt: skip
GROWING = ("write", "pwrite", "mkdir", "posix_fallocate")
NO_ROOM = 5
DISK = 64 * 2**20
"""Bytes of a small disk: more than any case needs, as runs that do not fit are refused before."""
FILLER = "filler"


def main() -> int:
    """Run all cases; 0 if every resumed run gave the bytes of the undisturbed one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path, help="for outputs; must not exist")
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--every", action="store_true", help="at every call")
    parser.add_argument("--random", type=int, default=0, help="random moments in each case")
    parser.add_argument("--full", type=int, default=0, help="points at which the disk is full")
    parser.add_argument("--mount", action="store_true", help="small disks that are really full")
    parser.add_argument("--take", default="1/1", help="of the calls: each 7th with 1/7")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="for the recipe")
    parser.add_argument("--size", default="0.5MB", help="that fit fits")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    load()
    failed = False
    for case in options.case or CASES:
        more = ["--size", options.size] if case == "fit" else [f"--set={s}" for s in options.set]
        base = CASES[case]
        command = [base[0], str(options.model.resolve()), *base[1:], *more]
        failed |= not Case(case, command, options.folder / case).run(options)
    return int(failed)


def load() -> None:
    """Import what runs need, and compute nothing, so that forks are like new processes."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")

    import quantkit.cli.main
    import quantkit.eval.compare
    import quantkit.runs.fit.choose
    import quantkit.runs.produce  # noqa: F401 - all for the forks


class Case:
    """A command, its undisturbed result, and what became of its killed runs."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name, self.command, self.folder = name, list(command), folder
        self.kills = self.full = self.resumed = self.finished = 0
        self.faults: list[str] = []

    def run(self, options: argparse.Namespace) -> bool:
        """Kill at every call asked for, then at random moments; whether all was well."""
        self.folder.mkdir()
        began = time.monotonic()
        if (code := wait(self.start("reference", Calls()))) != 0:
            raise SystemExit(f"{self.name}: the undisturbed run ended with {code}: {self.folder}")
        lasted = time.monotonic() - began
        reference = content(self.folder / "reference")
        total = int((self.folder / "reference.log").read_text().split()[-1])
        first, step = map(int, options.take.split("/"))
        points = range(first, total + 1, step) if options.every else range(0)
        for point in points:
            self.kill(f"at {point}", reference, self.start(f"at-{point}", Calls(point)))
        draw = random.Random(options.seed)  # noqa: S311 - repeatable moments
        for number in range(options.random):
            seconds = draw.uniform(0, lasted)
            child = self.start(f"random-{number}")
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)
            self.kill(f"after {seconds:.2f} s", reference, child, f"random-{number}")
        step = max(1, total // options.full) if options.full else total
        for point in range(step, total, step):
            name = f"full-at-{point}"
            home = self.folder / "runs" / name
            with mounted(home) if options.mount else nullcontext():
                calls = Calls(0, point, home / FILLER if options.mount else None)
                self.kill(f"full at {point}", reference, self.start(name, calls))
        print(
            f"{self.name}: {total} calls, {self.kills} kills, {self.full} full disks, "
            f"{self.resumed} resumed with finished blocks, "
            f"{self.finished} killed after they were done, {len(self.faults)} faults",
            flush=True,
        )
        for fault in self.faults:
            print(f"  {fault}", flush=True)
        return not self.faults

    def start(self, name: str, calls: Calls | None = None) -> int:
        """Fork a run into a folder of that name; returns the process."""
        home = self.folder / "runs" / name if name != "reference" else self.folder
        home.mkdir(parents=True, exist_ok=True)
        output = home / ("out" if name != "reference" else "reference")
        return forked([*self.command, "-o", str(output)], self.folder / f"{name}.log", calls)

    def kill(self, moment: str, reference: dict[str, str], child: int, name: str = "") -> None:
        """See what a killed run left, run it again, and compare."""
        name = name or moment.replace(" ", "-")
        home = self.folder / "runs" / name
        output = home / "out"
        code = wait(child)
        (home / FILLER).unlink(missing_ok=True)
        self.kills += code == -signal.SIGKILL
        self.full += code == NO_ROOM
        told = (self.folder / f"{name}.log").read_text()
        if code not in (0, -signal.SIGKILL, NO_ROOM) or (code == NO_ROOM) != ("error:" in told):
            self.faults.append(f"killed {moment}: ended with {code}")
        if output.exists():  # complete, or it must not be there
            self.finished += 1
            self.compare(moment, "left", reference, output)
            again = forked(["resume", str(output)], self.folder / f"{name}.log")
        else:
            again = self.start(name)
        if (code := wait(again)) != 0:
            self.faults.append(f"killed {moment}: the next run ended with {code}")
        self.resumed += "blocks are done" in (self.folder / f"{name}.log").read_text()
        self.compare(moment, "resumed", reference, output)
        orphans = [path.name for path in home.iterdir() if path != output]
        if orphans:
            self.faults.append(f"killed {moment}: {orphans} are left")
        if not self.faults:
            shutil.rmtree(home if not home.is_mount() else output)

    def compare(self, moment: str, what: str, reference: dict[str, str], output: Path) -> None:
        """Note the files that differ from the undisturbed run's."""
        found = content(output) if output.exists() else {}
        names = [name for name in {**reference, **found} if reference.get(name) != found.get(name)]
        if names:
            self.faults.append(f"killed {moment}: {what}: {names} differ")


def forked(arguments: list[str], log: Path, calls: Calls | None = None) -> int:
    """A process that runs a command line; what it prints is added to `log`, then its calls."""
    child = os.fork()
    if child:
        return child
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        from quantkit.cli.main import run

        if calls:
            calls.watch()
        code = run(arguments)
        if calls:
            print(f"\n{calls.number}")
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - a fork must not go on as its parent
        print(repr(error), flush=True)
        code = 70
    os._exit(code)


def wait(child: int) -> int:
    """The exit code of a process, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Calls:
    """Counts calls that change files; in number `fatal` the process dies, half of a write done.

    From number `full` on there is no room on the disk: `filler` takes it, or else calls fail.
    """

    def __init__(self, fatal: int = 0, full: int = 0, filler: Path | None = None) -> None:
        self.fatal, self.full, self.filler, self.number = fatal, full, filler, 0

    def watch(self) -> None:
        """See all such calls of `os` in this process from now on."""
        for name in WATCHED:
            setattr(os, name, self.seen(name, getattr(os, name)))

    def seen(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """`real`, counted."""

        def call(*arguments: Any, **named: Any) -> Any:
            self.number += 1
            if self.number == self.fatal:
                if name in ("write", "pwrite"):
                    fd, data, *offset = arguments
                    real(fd, memoryview(data)[: len(data) // 2], *offset)
                os.kill(os.getpid(), signal.SIGKILL)
            if self.number == self.full and self.filler:
                fill(self.filler)
            if 0 < self.full <= self.number and name in GROWING and not self.filler:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **named)

        return call


@contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """A disk of its own at a folder, in memory."""
    folder.mkdir(parents=True)
    size = f"size={DISK}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True)  # noqa: S603, S607
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)  # noqa: S603, S607


def fill(path: Path) -> None:
    """Take all that is free on a disk."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(2**20))


def content(folder: Path) -> dict[str, str]:
    """SHA-256 of each file; of what was measured only that it is there, as it differs each time."""
    return dict(hashed(folder))


def hashed(folder: Path) -> Iterator[tuple[str, str]]:
    """As `content`."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        name, data = path.relative_to(folder).as_posix(), path.read_bytes()
        if name == "quantkit.json":
            manifest = json.loads(data)
            data = json.dumps({**manifest, "measured": {}, "planned": {}}).encode()
        elif name == "SHA256SUMS":
            data = b"\n".join(line for line in data.splitlines() if b"quantkit.json" not in line)
        yield name, hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
