"""The quantized computation of an artifact, timed in this process beside the original's."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from quantkit.bench.linear import Workload
from quantkit.bench.memory import measure_memory
from quantkit.bench.runtime import Runtime, load_runtime
from quantkit.bench.statistics import latency_figures, median, median_interval, ratio_interval
from quantkit.bench.timing import Cell, Effort, Run, Timings, measure_cell
from quantkit.core.errors import RefusedError
from quantkit.core.progress import Progress
from quantkit.core.session import Session
from quantkit.model.open import open_model
from quantkit.model.opened import context_length
from quantkit.results.schema import LocalSpeed, Memory

CELLS = (Cell(1, 512), Cell(1, 2048), Cell(4, 512))
GPU_CELLS = tuple(Cell(batch, context) for batch in (1, 4, 16) for context in (512, 2048, 8192))
"""A GPU runs these in the time that a CPU takes for the three; what does not fit is left out."""


@dataclass(frozen=True)
class LocalResult:
    """The cells that were timed, the memory of one pass, and what a reader must be told."""

    cells: tuple[LocalSpeed, ...] = ()
    memory: Memory = field(default_factory=Memory)
    notes: tuple[str, ...] = ()


def measure_local(
    artifact: Path,
    reference: Path | None = None,
    session: Session = Session(),
    *,
    cells: Sequence[Cell] = (),
    effort: Effort = Effort(),  # noqa: B008 - frozen
) -> LocalResult:
    """Speed and memory of the artifact in memory; with a reference also the ratio of both.

    Cells are the device's own by default; longer ones than the model's context are shortened to it,
    and those that do not fit into memory are named in a note. Where no kernel here multiplies one
    of its weights there are no figures, and a note says why.
    """
    model = open_model(artifact, session)
    usual = GPU_CELLS if model.device.type == "cuda" else CELLS
    cells = fitting_cells(cells or usual, context_length(model))
    if not cells:
        return LocalResult(notes=("no speed: the context is shorter than the steps measured",))

    load = partial(load_runtime, load=Workload(cells[0].context_tokens), report=session.report)
    try:
        runtime = load(model)
    except RefusedError as refusal:
        return LocalResult(notes=(f"no speed: {refusal.what}: {refusal.why}",))
    memory = _memory(runtime, cells[0])
    runtimes = [runtime, *([load(open_model(reference, session))] if reference else [])]
    found: list[LocalSpeed] = []
    notes: list[str] = []
    for done, cell in enumerate(cells):
        session.report(
            Progress("speed", done, len(cells), f"{cell.batch} x {cell.context_tokens} tokens")
        )
        try:
            timings = measure_cell([runtime.network for runtime in runtimes], cell, effort)
        except torch.OutOfMemoryError:
            notes.append(f"{cell.batch} x {cell.context_tokens} tokens do not fit into memory")
            continue
        speed = speed_of(runtime, timings[0], *timings[1:])
        found.append(speed)
        if reference:
            notes += slower_than(speed, str(runtimes[1].dtype).removeprefix("torch."))
    session.report(Progress("speed", len(cells), len(cells), "done"))
    return LocalResult(tuple(found), memory, tuple(notes))


def fitting_cells(cells: Sequence[Cell], context: int) -> tuple[Cell, ...]:
    """Each cell with its context and steps within `context` tokens, equal ones once."""
    shorter = (
        replace(cell, context_tokens=min(cell.context_tokens, context - cell.decode_steps))
        for cell in cells
    )
    return tuple(dict.fromkeys(cell for cell in shorter if cell.context_tokens > 0))


def speed_of(runtime: Runtime, timings: Timings, reference: Timings | None = None) -> LocalSpeed:
    """Medians of the repeats with 95 % intervals, and their ratios to the reference's."""
    cell = timings.cell
    first, gaps = [[seconds] for seconds in timings.prefill], timings.steps
    latencies = {
        "ttft_p50": (first, 0.5),
        "itl_p50": (gaps, 0.5),
        "itl_p95": (gaps, 0.95),
        "itl_p99": (gaps, 0.99),
    }
    prefill, decode = timings.prefill_rates, timings.decode_rates
    speed = LocalSpeed(
        batch=cell.batch,
        context_tokens=cell.context_tokens,
        kernel=runtime.kernel,
        threads=torch.get_num_threads(),
        repeats=len(prefill),
        prefill_tokens_per_s=median(prefill),
        prefill_ci95=median_interval(prefill),
        decode_tokens_per_s=median(decode),
        decode_ci95=median_interval(decode),
        **latency_figures(latencies),
    )
    if reference is None:
        return speed
    other_prefill, other_decode = reference.prefill_rates, reference.decode_rates
    return speed.model_copy(
        update={
            "prefill_ratio": median(prefill) / median(other_prefill),
            "prefill_ratio_ci95": ratio_interval(prefill, other_prefill),
            "decode_ratio": median(decode) / median(other_decode),
            "decode_ratio_ci95": ratio_interval(decode, other_decode),
        }
    )


def slower_than(speed: LocalSpeed, dtype: str) -> list[str]:
    """A plain sentence for prefill and for decode where the original is surely faster."""
    found = []
    for name in ("prefill", "decode"):
        interval = getattr(speed, f"{name}_ratio_ci95")
        if interval is not None and interval[1] < 1:
            found.append(
                f"{name} of {speed.batch} x {speed.context_tokens} tokens is slower than the "
                f"original in {dtype}: {getattr(speed, f'{name}_ratio'):.2f} x with {speed.kernel}"
            )
    return found


def _memory(runtime: Runtime, cell: Cell) -> Memory:
    """One prefill and one step of `cell`, after another that has touched every page."""
    run = Run(runtime.network, Cell(cell.batch, cell.context_tokens, 1))
    run()
    held = run.kv_bytes()
    memory = measure_memory(runtime.network, runtime.blocks(), run.prefill)
    tokens = cell.batch * (cell.context_tokens + 1)
    parts = memory.parts_bytes | {"kv": held}
    if runtime.network.device.type == "cuda":  # its allocator counts the cache into the pass
        parts["activations"] = max(0, parts["activations"] - held)
    return memory.model_copy(update={"parts_bytes": parts, "kv_bytes_per_token": held // tokens})
