import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from quantkit.recipes.loader import build_recipe
from quantkit.results.file import read_result
from quantkit.results.schema import EvalResult, Protocol
from quantkit.runs.sweep.journal import Attempt, Job, jobs_of
from quantkit.runs.sweep.runners import ray as runner

COMMAND = Path(sys.executable).with_name("ray")


def execute(job: Job, artifact: Path) -> EvalResult:
    """Says in which process it ran; the recipe `nf4` loses its process."""
    if job.recipe.name == "nf4":
        os._exit(1)
    protocol = Protocol(name="p", text="t", tokens_sha256="", windows=1, sequence_length=2)
    whole = {"artifact": {"name": str(os.getpid())}, "protocol": protocol, "tokens": 1}
    artifact.mkdir()
    return EvalResult.model_validate(whole | {"perplexity": {"value": 2.0}})


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


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore")  # of Ray's own threads and sockets
def test_runs_happen_in_the_clusters_processes_and_a_lost_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    jobs = jobs_of("m", [build_recipe(name) for name in ("rtn", "nf4", "gptq")])
    found = {run.family: run for run in runner.run([Attempt(tmp_path, j, execute) for j in jobs])}
    assert {key: run.status for key, run in found.items()} == {
        "rtn": "done",
        "nf4": "failed",
        "gptq": "done",
    }
    assert "process was lost" in found["nf4"].why
    for key in ("rtn", "gptq"):
        result = read_result(tmp_path / str(found[key].eval), EvalResult)
        assert result.artifact.name != str(os.getpid())
