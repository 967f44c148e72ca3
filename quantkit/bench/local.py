"""Speed and memory of an artifact in this process, next to the original's."""

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
"""A GPU runs these as fast as a CPU runs the three; cells that do not fit are left out."""


@dataclass(frozen=True)
class LocalResult:
    """The timed cells, the memory of one pass, and notes for readers."""

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
    """Speed and memory of the artifact; with a reference also the ratio of both speeds.

    By default the cells are those of the device. Cells longer than the model's context are
    shortened, and cells that do not fit into memory are listed in a note. If no kernel supports a
    weight, there are no figures, and a note states the reason.
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
    """The cells, shortened so that context and steps fit `context` tokens, without duplicates."""
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
    """A sentence for prefill and decode if the original is significantly faster."""
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
    """Memory of one prefill and one step of `cell`, after a warm-up that touches every page."""
    run = Run(runtime.network, Cell(cell.batch, cell.context_tokens, 1))
    run()
    held = run.kv_bytes()
    memory = measure_memory(runtime.network, runtime.blocks(), run.prefill)
    tokens = cell.batch * (cell.context_tokens + 1)
    parts = memory.parts_bytes | {"kv": held}
    if runtime.network.device.type == "cuda":  # the allocator's peak includes the cache
        parts["activations"] = max(0, parts["activations"] - held)
    return memory.model_copy(update={"parts_bytes": parts, "kv_bytes_per_token": held // tokens})
