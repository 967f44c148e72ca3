import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from quantkit.eval.results import SweepRun
from quantkit.eval.runners import ray as runner

COMMAND = Path(sys.executable).with_name("ray")


def task(number: int, caller: int) -> SweepRun:
    elsewhere = os.getpid() != caller
    return SweepRun(key=str(number), label="run", family="rtn", status="done", why=str(elsewhere))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of one machine, on loopback, in a process group of its own."""
    import ray

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    port = free_port()
    start = f"start --head --block --node-ip-address=127.0.0.1 --port={port} --num-cpus=1"
    words = [str(COMMAND), *start.split(), "--include-dashboard=0"]
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*words, "--object-store-memory=80000000"],
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield
    finally:
        ray.shutdown()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore")  # of Ray's own threads and sockets
def test_runs_happen_in_the_clusters_processes() -> None:
    tasks = [partial(task, number, os.getpid()) for number in range(3)]
    found = list(runner.run(tasks))
    assert sorted(run.key for run in found) == ["0", "1", "2"]
    assert all(run.why == "True" for run in found)
