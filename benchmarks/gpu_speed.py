"""Prefill and decode of a model or an artifact on a GPU, in our own kernels or in vLLM.

    python -m benchmarks.gpu_speed own|vllm DEVICE FOLDER > figures.json

Own kernels: one sequence of CONTEXT tokens; steps of decoding are a CUDA graph, recorded once and
replayed, because launching its kernels one by one takes longer than a small step's work. vLLM: one
request at a time. Prints one line of JSON.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from quantkit.bench.linear import Workload
from quantkit.bench.runtime import load_runtime
from quantkit.bench.timing import Cell, Run
from quantkit.core.session import Session
from quantkit.model.open import open_model

CONTEXT, STEPS, REPEATS = 2048, 128, 5
WARMUPS = 3  # steps before a graph is recorded: what libraries set up in a first call
CHECKED = 8  # steps whose tokens are compared with those of steps that are not recorded


def main() -> None:
    """Measure the folder, and print what was found."""
    way, device, folder = sys.argv[1:]
    print(json.dumps({"own": own, "vllm": vllm}[way](Path(folder), Session(device))))


@torch.inference_mode()
def own(folder: Path, session: Session) -> dict[str, Any]:
    """Medians of one sequence: tokens per second of prefill, and of recorded steps."""
    model = open_model(folder, session)
    context = min(CONTEXT, model.config.max_position_embeddings // 2)
    runtime = load_runtime(model, Workload(context))
    run = Run(runtime.network, Cell(1, context, STEPS + WARMUPS))
    prefills = [seconds(run.prefill, session.device) for _ in range(REPEATS + 1)]
    step, ids = step_of(run)
    expected = tokens(step, ids, run)
    replay = recorded(step) if session.device != "cpu" else step
    same = tokens(replay, ids, run) == expected
    run.prefill()
    steps = [seconds(replay, session.device) for _ in range(STEPS)]
    return {
        "kernel": runtime.kernel,
        "graph": session.device != "cpu",
        "same tokens as without a graph": same,
        "prefill_tokens_per_s": context / median(prefills[1:]),
        "decode_tokens_per_s": 1 / median(steps),
    }


def step_of(run: Run) -> tuple[Callable[[], None], torch.Tensor]:
    """A greedy step, and the tensor (1, 1) of the token that it reads and then replaces."""
    ids = torch.zeros_like(run.ids[:, :1])

    def step() -> None:
        out = run.network(input_ids=ids, past_key_values=run.cache, use_cache=True, **run.options)
        ids.copy_(out.logits[:, -1:].argmax(-1))

    return step, ids


def tokens(step: Callable[[], None], ids: torch.Tensor, run: Run) -> list[int]:
    """The first tokens after the context."""
    run.prefill()
    ids.zero_()
    found = []
    for _ in range(CHECKED):
        step()
        found.append(int(ids))
    return found


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    """The step as a CUDA graph; its cache moves on by itself, as its length is a tensor."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def seconds(work: Callable[[], object], device: str) -> float:
    """Seconds of one call until the device has done it."""
    if device != "cpu":
        torch.cuda.synchronize(device)
    started = perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return perf_counter() - started


def vllm(folder: Path, session: Session) -> dict[str, Any]:
    """One request at a time: from the time of the first token, and of each later one."""
    from quantkit.bench.vllm import Workload as Requests
    from quantkit.bench.vllm import measure_vllm

    load = Requests(CONTEXT, STEPS, concurrencies=(1,), rounds=REPEATS, at_least=REPEATS)
    (found,) = measure_vllm(folder, session, load)
    assert found.ttft_p50_ms is not None
    assert found.tpot_excl_first_p50_ms is not None
    return {
        "kernel": found.kernel,
        "version": found.version,
        "failed_requests": found.failed_requests,
        "prefill_tokens_per_s": 1000 * found.input_tokens / found.ttft_p50_ms,
        "decode_tokens_per_s": 1000 / found.tpot_excl_first_p50_ms,
    }


if __name__ == "__main__":
    main()
