"""The harness with the real server: it serves what quantkit wrote, and ends with the block."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit import quantize
from quantkit.bench.vllm import PYTHON, Workload, measure_vllm, serving
from quantkit.core.errors import RefusedError
from quantkit.recipes.loader import build_recipe


@pytest.fixture
def w8a8(tiny_checkpoint_cache: Callable[..., Path], tmp_path: Path) -> Path:
    source = tiny_checkpoint_cache("llama", dtype="bfloat16")
    recipe = build_recipe("smoothquant", method="rtn")
    quantize(str(source), tmp_path / "out", recipe=recipe, device="cpu", evaluate=False)
    return tmp_path / "out"


def test_throughput_and_latency_at_each_concurrency(
    w8a8: Path, engine_python: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, engine_python("vllm"))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    before = _children()  # of other tests in this process
    workload = Workload(64, 16, concurrencies=(1, 4), rounds=2, at_least=4)
    found = measure_vllm(w8a8, workload=workload)
    assert [(load.concurrency, load.requests) for load in found] == [(1, 4), (4, 8)]
    for load in found:
        assert load.failed_requests == 0
        assert (load.input_tokens, load.output_tokens) == (64, 16)
        assert load.output_ci95 is not None
        assert 0 < load.output_ci95[0] <= load.output_tokens_per_s <= load.output_ci95[1]
        assert load.ttft_p50_ms is not None
        assert load.ttft_p99_ms is not None
        assert load.ttft_p50_ms <= load.ttft_p99_ms
        assert load.ttft_p50_ci95 is not None
        assert load.ttft_p50_ci95[0] <= load.ttft_p50_ms <= load.ttft_p50_ci95[1]
        assert "Int8" in load.kernel
        assert load.version
    assert set(_children()) <= set(before)


def test_a_server_that_does_not_start_is_refused_with_its_own_reason(
    w8a8: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, sys.executable)  # has no vLLM
    with (
        pytest.raises(RefusedError, match="stopped during startup") as refusal,
        serving(w8a8, 64, 1),
    ):
        pytest.fail("it cannot be serving")
    assert "No module named 'vllm'" in str(refusal.value.why)


def test_the_server_does_not_outlive_a_process_that_is_killed(tmp_path: Path) -> None:
    sleeper = tmp_path / "python"  # stands where the server would: what counts is how it is started
    sleeper.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/id\nexec sleep 60\n")
    sleeper.chmod(0o755)
    code = (
        "from pathlib import Path; from quantkit.bench.vllm import serving; "
        f"serving(Path({str(tmp_path)!r}), 64, 1).__enter__()"
    )
    path = os.pathsep.join(sys.path)
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {PYTHON: str(sleeper), "PYTHONPATH": path},
    )
    while not (tmp_path / "id").exists() or not (tmp_path / "id").read_text().strip():
        assert started.poll() is None
        time.sleep(0.1)
    started.kill()
    started.wait()
    server = Path("/proc", (tmp_path / "id").read_text().strip())
    for _ in range(100):
        if not server.exists() or "zombie" in (server / "status").read_text():
            return
        time.sleep(0.1)
    pytest.fail("the server is still running")


def _children() -> list[str]:
    """Processes that have this one as their parent."""
    me = str(os.getpid())
    return [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/stat")
        if path.read_text().rpartition(")")[2].split()[1] == me
    ]
