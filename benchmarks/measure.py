"""Wall time, CPU time and peak memory of one whole command, start of the process to its exit.

    python measure.py [--json FILE] -- COMMAND [ARGUMENT ...]

The command's own start, imports, downloads to disk and every child it waits for are included,
so tools that differ in how they are built are measured alike.  Nothing heavy is imported here:
the kernel counts this process's pages in the child's peak until the child starts its program.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path


def measure(command: list[str], log: Path | None = None) -> dict[str, float | int]:
    """Exit code, wall and CPU seconds, and peak resident bytes of a finished command.

    Args:
        command: Program and arguments, run in the current folder and environment.
        log: File for the command's stdout and stderr; inherited when None.

    Returns:
        ``exit_code``, ``wall_seconds``, ``cpu_seconds`` (user and system, children included) and
        ``peak_rss_bytes`` (of the largest process in the command's tree, as Linux counts it:
        pages of mapped files are in it).
    """
    stream = log.open("wb") if log else None
    start = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603 - whoever runs the benchmark names the command
        command, stdout=stream, stderr=subprocess.STDOUT if log else None
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if stream:
        stream.close()
    return {
        "exit_code": process.returncode,
        "wall_seconds": round(wall, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_rss_bytes": usage.ru_maxrss * 1024,
    }


def main() -> int:
    """Exit code of the measured command; its figures go to stderr and to ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("no command given")
    figures = measure(command)
    text = json.dumps(figures, indent=2)
    print(text, file=sys.stderr)
    if args.json:
        args.json.write_text(text + "\n")
    return int(figures["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
