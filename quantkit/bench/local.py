"""Speed and memory of an artifact in this process, next to the original's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

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
from quantkit.pipeline.memory import give_back_gpu, is_out_of_memory
from quantkit.results.schema import LocalSpeed, Memory

CELLS = (Cell(1, 512), Cell(1, 2048), Cell(4, 512))
GPU_CELLS = tuple(Cell(batch, context) for batch in (1, 4, 16) for context in (512, 2048, 8192))
"""A GPU runs these as fast as a CPU runs the three."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class LocalResult:
    """The timed cells, the memory of one pass, and notes for readers."""

    cells: tuple[LocalSpeed, ...] = ()
    memory: Memory = field(default_factory=Memory)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """One model: its kernels, its dtype, and for each cell timings, or why there are none."""

    kernel: str
    dtype: str
    cells: tuple[Timings | str, ...]


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
    shortened; one that cannot be measured, for lack of memory above all, states why. A CPU runs
    both models in turns; any other device holds one at a time. If no kernel supports a weight,
    there are no figures, and a note states the reason.
    """
    model = open_model(artifact, session)
    usual = GPU_CELLS if model.device.type == "cuda" else CELLS
    cells = fitting_cells(cells or usual, context_length(model))
    if not cells:
        return LocalResult(notes=("no speed: the context is shorter than the steps measured",))
    paths = [artifact, *([reference] if reference else [])]
    measured: list[Measured] = []
    memories: list[Memory | str] = []
    for together in [paths] if model.device.type == "cpu" else [[path] for path in paths]:
        try:
            found, memory = _measure(together, cells, effort, session)
        except RefusedError as refusal:
            return LocalResult(notes=(f"no speed: {refusal.what}: {refusal.why}",))
        finally:
            give_back_gpu()
        measured += found
        memories.append(memory)
    session.report(Progress("speed", len(cells), len(cells), "done"))
    return _result(measured, memories[0], cells)


def _measure(
    paths: Sequence[Path], cells: Sequence[Cell], effort: Effort, session: Session
) -> tuple[list[Measured], Memory | str]:
    """Load models, and time them in turns; with the memory of the first without the others."""
    runtimes: list[Runtime | str] = []
    memory: Memory | str = Memory()
    for path in paths:
        runtime = _tried(partial(_load, path, cells[0], session))
        if not runtimes and not isinstance(runtime, str):
            memory = _tried(partial(_memory, runtime, cells[0]))
        runtimes.append(runtime)
    networks = [runtime.network for runtime in runtimes if not isinstance(runtime, str)]
    rows = []
    for done, cell in enumerate(cells):
        what = f"{cell.batch} x {cell.context_tokens} tokens"
        session.report(Progress("speed", done, len(cells), what))
        timed = _tried(partial(measure_cell, networks, cell, effort))
        each = repeat(timed) if isinstance(timed, str) else iter(timed)
        rows.append([r if isinstance(r, str) else next(each) for r in runtimes])
    found = []
    for runtime, column in zip(runtimes, zip(*rows, strict=True), strict=True):
        if isinstance(runtime, str):
            found.append(Measured("", "", column))
        else:
            dtype = str(runtime.dtype).removeprefix("torch.")
            found.append(Measured(runtime.kernel, dtype, column))
    return found, memory


def _load(path: Path, cell: Cell, session: Session) -> Runtime:
    return load_runtime(open_model(path, session), Workload(cell.context_tokens), session.report)


def _tried(work: Callable[[], Found]) -> Found | str:
    """What `work` returns, or why it failed; then the memory that it took is given back."""
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        text = str(error).partition("\n")[0]
        fault = "out of memory" if is_out_of_memory(error) else text or type(error).__name__
    give_back_gpu()
    return fault


def _result(
    measured: Sequence[Measured], memory: Memory | str, cells: Sequence[Cell]
) -> LocalResult:
    """The cells with ratios, where there are two models, and notes on what is slow or missing."""
    ours, *others = measured
    found, notes = [], []
    if isinstance(memory, str):
        notes.append(f"no figures of memory: {memory}")
        memory = Memory()
    for i, cell in enumerate(cells):
        reference = others[0].cells[i] if others else None
        speed = speed_of(ours.kernel, cell, ours.cells[i], reference)
        found.append(speed)
        if others:
            notes += slower_than(speed, others[0].dtype)
    return LocalResult(tuple(found), memory, tuple(notes))


def fitting_cells(cells: Sequence[Cell], context: int) -> tuple[Cell, ...]:
    """The cells, shortened so that context and steps fit `context` tokens, without duplicates."""
    shorter = (
        replace(cell, context_tokens=min(cell.context_tokens, context - cell.decode_steps))
        for cell in cells
    )
    return tuple(dict.fromkeys(cell for cell in shorter if cell.context_tokens > 0))


def speed_of(
    kernel: str, cell: Cell, timings: Timings | str, reference: Timings | str | None = None
) -> LocalSpeed:
    """Medians of the repeats with 95 % intervals, and their ratios to the reference's.

    A text in place of timings states why there are none.
    """
    speed = LocalSpeed(
        batch=cell.batch,
        context_tokens=cell.context_tokens,
        kernel=kernel,
        threads=torch.get_num_threads(),
        repeats=0 if isinstance(timings, str) else len(timings.prefill),
        fault=timings if isinstance(timings, str) else None,
        reference_fault=reference if isinstance(reference, str) else None,
    )
    if isinstance(timings, str):
        return speed
    figures = _figures(timings)
    if isinstance(reference, Timings):
        figures |= _ratios(timings, reference)
    return speed.model_copy(update=figures)


def _figures(timings: Timings) -> dict[str, Any]:
    first, gaps = [[seconds] for seconds in timings.prefill], timings.steps
    latencies = {
        "ttft_p50": (first, 0.5),
        "itl_p50": (gaps, 0.5),
        "itl_p95": (gaps, 0.95),
        "itl_p99": (gaps, 0.99),
    }
    prefill, decode = timings.prefill_rates, timings.decode_rates
    return {
        "prefill_tokens_per_s": median(prefill),
        "prefill_ci95": median_interval(prefill),
        "decode_tokens_per_s": median(decode),
        "decode_ci95": median_interval(decode),
        **latency_figures(latencies),
    }


def _ratios(timings: Timings, reference: Timings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("prefill", "decode"):
        rates, others = (getattr(t, f"{name}_rates") for t in (timings, reference))
        found[f"{name}_ratio"] = median(rates) / median(others)
        found[f"{name}_ratio_ci95"] = ratio_interval(rates, others)
    return found


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
