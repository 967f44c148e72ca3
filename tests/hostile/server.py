"""Runs command lines in forked processes that have everything imported, and measures each.

One JSON object a line: {"argv", "cwd"} in, {"code", "out", "err", "seconds", "cpu", "peak"} out. A
fork costs milliseconds, where a new process imports torch for seconds; what it is asked to do, its
memory and its temporary files are its own all the same.
"""

import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WALL = 30.0
"""Seconds after which a process is killed; it may wait for others on a busy machine."""
MOST = 3 * 2**30
"""Bytes of memory at which it is killed."""


MODULES = (
    *("quantkit.cli.main", "quantkit.api.artifacts", "quantkit.api.evaluation"),
    *("quantkit.api.planning", "quantkit.api.verification", "quantkit.runs.evaluation"),
    *("quantkit.runs.produce", "quantkit.runs.ranks", "quantkit.runs.verify"),
    *("quantkit.planning.model.opened", "quantkit.planning.builds", "quantkit.eval.generation"),
    *("quantkit.runs.sweep.job", "quantkit.eval.report.write", "quantkit.recipes.loader"),
    *("transformers", "transformers.models.llama.modeling_llama", "regex", "jinja2.sandbox"),
    *("transformers.tokenization_utils_tokenizers", "transformers.conversion_mapping"),
    *("transformers.core_model_loading", "greenlet", "scipy.stats", "pyarrow.parquet"),
)
"""What verbs import when they begin."""


def main() -> None:
    """Answer requests until the input ends."""
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    from quantkit.api.loading import load_torch
    from quantkit.core.progress import silent

    load_torch(silent)
    for module in MODULES:
        importlib.import_module(module)
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The end of one command line, by its own process."""
    home = Path(request["cwd"])
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _become(request["argv"], home)
    peak, killed = 0, False
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        peak = max(peak, _resident(child))
        if time.monotonic() - began > WALL or peak > MOST:
            killed = True
            os.killpg(child, signal.SIGKILL)
        time.sleep(0.01)
    return {
        "code": None if killed else os.waitstatus_to_exitcode(status),
        "out": (home / "out").read_text(errors="replace"),
        "err": (home / "err").read_text(errors="replace"),
        "seconds": time.monotonic() - began,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak": max(peak, usage.ru_maxrss * 1024),
    }


def _become(argv: list[str], home: Path) -> None:
    from quantkit.cli.main import run

    code = 70
    try:
        os.setsid()
        os.chdir(home / "here")
        tempfile.tempdir = str(home / "tmp")
        os.environ["QUANTKIT_CACHE"] = str(home / "cache")
        for fd, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(home / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), fd)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = run(argv)
    except BaseException:  # noqa: BLE001 - what the verbs do not catch is a fault, and is shown
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _resident(process: int) -> int:
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
