"""Speed of vLLM's OpenAI server on loopback under concurrent requests."""

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

import httpx2
import torch

from quantkit.bench.clients import Outcome, closed_loop
from quantkit.bench.statistics import latency_figures, rate_interval
from quantkit.core.errors import RefusedError
from quantkit.core.progress import Progress
from quantkit.core.session import Session
from quantkit.model.open import open_model
from quantkit.model.opened import context_length
from quantkit.results.schema import EngineSpeed

PYTHON = "QUANTKIT_ENGINE_PYTHON_VLLM"
"""Environment variable: the interpreter of an environment with vLLM."""

START_SECONDS = 600
STOP_SECONDS = 20
DEFAULTS = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_INT4_W4A8": "0",  # multiply by what the file says, also on processors with AMX
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Workload:
    """Requests of `input_tokens` random ids each, so that no two share a prefix.

    At each concurrency every user sends one warm-up request, then `rounds` requests; in total at
    least `at_least` requests are counted, for an interval.
    """

    input_tokens: int = 512
    output_tokens: int = 128
    concurrencies: tuple[int, ...] = (1, 4, 16)
    rounds: int = 4
    at_least: int = 16


@dataclass(frozen=True)
class Server:
    """A running server: URL, version, and the kernels that its log names."""

    url: str
    version: str
    kernel: str


def measure_vllm(
    artifact: Path, session: Session = Session(), workload: Workload = Workload()
) -> list[EngineSpeed]:
    """Throughput, TTFT and token gaps of the artifact in vLLM at each concurrency.

    Lengths are shortened to the model's context.

    Raises:
        RefusedError: vLLM is not installed, or it does not serve this artifact.
    """
    model = open_model(artifact, session)
    whole = min(context_length(model), workload.input_tokens + workload.output_tokens)
    output = min(workload.output_tokens, whole // 4)
    vocabulary = int(model.config.get_text_config().vocab_size)
    rng = torch.Generator().manual_seed(0)

    def prompts(count: int) -> list[list[int]]:
        shape = (count, whole - output)
        drawn: list[list[int]] = torch.randint(vocabulary, shape, generator=rng).tolist()
        return drawn

    steps = len(workload.concurrencies) + 1
    session.report(Progress("vllm", 0, steps, "starting the server"))
    found = []
    with serving(artifact, whole, max(workload.concurrencies)) as server:
        for done, users in enumerate(workload.concurrencies, start=1):
            session.report(Progress("vllm", done, steps, f"{users} requests at a time"))
            loop = {"concurrency": users, "output_tokens": output}
            closed_loop(server.url, prompts(users), **loop)
            count = max(workload.at_least, users * workload.rounds)
            outcome = closed_loop(server.url, prompts(count), **loop)
            found.append(_figures(server, users, whole - output, output, outcome))
    session.report(Progress("vllm", steps, steps))
    return found


@contextmanager
def serving(artifact: Path, max_tokens: int, users: int) -> Iterator[Server]:
    """Serve the artifact on a free loopback port within a `with` block.

    Raises:
        RefusedError: vLLM is not installed, or its server stops or hangs during startup.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        # not `vllm serve`: it needs a package called `vllm`, and the CPU build has another name
        *(_python(), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(artifact.resolve()), "--served-model-name", "quantkit"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", str(max_tokens), "--max-num-seqs", str(users)),
        "--no-enable-prefix-caching",
    ]
    if not torch.cuda.is_available():
        command.append("--enforce-eager")  # compiling for a CPU takes minutes
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as stream:
            process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                cwd=folder,
                env=DEFAULTS | os.environ,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that its workers can be stopped with it
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - one prctl, prepared before the fork
            )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, log)
            yield Server(url, _version(url), kernels_named(log.read_text(errors="replace")))
        finally:
            _stop(process)


def _prctl() -> Callable[..., int] | None:
    """Linux' prctl; None elsewhere."""
    return getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


PRCTL = _prctl()


def _end_with_parent() -> None:
    """Make the kernel send SIGTERM to the server when this process dies."""
    if PRCTL is not None:
        PRCTL(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG


def _python() -> str:
    """The interpreter that has vLLM."""
    named = os.environ.get(PYTHON)
    if named:
        return named
    if find_spec("vllm") is None:
        raise RefusedError(
            "vLLM is not installed",
            why="its packages conflict with quantkit's, so it needs its own environment",
            hint=f"export {PYTHON}=/path/to/venv/bin/python",
        )
    return sys.executable


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    """Return once the server answers.

    Raises:
        RefusedError: it ends, or does not answer in time; the reason is from its log.
    """
    deadline = monotonic() + START_SECONDS
    while process.poll() is None and monotonic() < deadline:
        try:
            if httpx2.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        sleep(0.5)
    lines = log.read_text(errors="replace").splitlines()
    faults = [line for line in lines if re.search(r"\w*(Error|Exception): ", line)]
    state = "stopped" if process.poll() is not None else "does not answer"
    raise RefusedError(
        f"vLLM's server {state} during startup",
        why=(faults or lines or ["its log is empty"])[-1],
        hint="quantkit eval ARTIFACT --speed",
    )


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop the server and its workers: SIGTERM first, then SIGKILL."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _version(url: str) -> str:
    return str(httpx2.get(f"{url}/version", timeout=5, trust_env=False).json().get("version", ""))


def kernels_named(log: str) -> str:
    """The kernels of linears, and what computes experts, that vLLM's log names, in order.

    Linears: `Using MarlinLinearKernel for ...`, experts: `Using 'MARLIN' WNA16 MoE backend`.
    AWQ's own kernels, far slower than Marlin, have no name of their own.
    """
    lines = (
        r"(?:Using|Selected) (\w+Kernel\w*) for",
        r"Using ('?\w+'? (?:\w+ ){1,2}MoE) backend",
        r"(unoptimized AWQ kernels)",
    )
    found = ("".join(match).replace("'", "") for match in re.findall("|".join(lines), log))
    return ", ".join(dict.fromkeys(found))


def _figures(
    server: Server, users: int, input_tokens: int, output_tokens: int, outcome: Outcome
) -> EngineSpeed:
    complete = outcome.complete
    first = [[seconds] for seconds in outcome.first_token_seconds()]
    later = [[seconds] for seconds in outcome.seconds_per_later_token()]
    gaps = outcome.gaps()
    latencies = {
        "ttft_p50": (first, 0.5),
        "ttft_p99": (first, 0.99),
        "itl_p50": (gaps, 0.5),
        "itl_p99": (gaps, 0.99),
        "tpot_excl_first_p50": (later, 0.5),
    }
    rate = sum(answer.tokens for answer in complete) / outcome.seconds
    busy = outcome.whole_seconds()
    return EngineSpeed(
        engine="vllm",
        version=server.version,
        kernel=server.kernel,
        concurrency=users,
        requests=len(outcome.answers),
        failed_requests=len(outcome.answers) - len(outcome.complete),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        output_tokens_per_s=rate,
        # users are never idle, so the rate is as uncertain as the mean time of a request
        output_ci95=rate_interval(busy, rate * sum(busy) / len(busy)) if busy else None,
        **latency_figures(latencies),
    )
