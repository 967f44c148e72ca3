"""A cell's timings, its cache, and the turns that models take."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quantkit.bench.local import fitting_cells, measure_local, slower_than, speed_of
from quantkit.bench.runtime import load_runtime
from quantkit.bench.timing import Cell, Effort, Run, Timings, measure_cell
from quantkit.model.open import open_model

CELL = Cell(batch=2, context_tokens=40, decode_steps=6)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_steps_and_cache_are_those_of_the_cell(
    tiny_checkpoint_cache: Callable[..., Path], family: str
) -> None:
    runtime = load_runtime(open_model(tiny_checkpoint_cache(family)))
    timings = measure_cell([runtime.network], CELL, Effort(warmups=1, repeats=3))[0]
    assert len(timings.prefill) == 3
    assert [len(steps) for steps in timings.steps] == [6] * 3
    assert min(timings.prefill_rates + timings.decode_rates) > 0
    heads = 4 if family == "gpt2" else 2
    # two layers of keys and values in fp32 for each position of both sequences
    assert timings.kv_bytes == 2 * 2 * 2 * heads * 32 * 4 * (40 + 6)


def test_a_run_decodes_what_generation_does(tiny_checkpoint_cache: Callable[..., Path]) -> None:
    network = load_runtime(open_model(tiny_checkpoint_cache("llama"))).network
    run = Run(network, CELL)
    chosen: list[torch.Tensor] = []
    handle = network.register_forward_hook(
        lambda _, args, kwargs, out: chosen.append(out.logits[:, -1].argmax(-1)),  # noqa: ARG005
        with_kwargs=True,
    )
    run()
    run()
    handle.remove()
    expected = network.generate(run.ids, max_new_tokens=7, min_new_tokens=7, do_sample=False)
    for repeat in (chosen[:7], chosen[7:]):
        assert torch.equal(torch.stack(repeat, dim=1), expected[:, 40:])


def test_models_take_turns_there_and_back(tiny_checkpoint_cache: Callable[..., Path]) -> None:
    networks = [
        load_runtime(open_model(tiny_checkpoint_cache("llama", dtype=dtype))).network
        for dtype in ("float32", "bfloat16")
    ]
    order: list[int] = []
    for i, network in enumerate(networks):
        network.register_forward_pre_hook(lambda *_, i=i: order.append(i))
    measure_cell(networks, Cell(1, 4, 1), Effort(warmups=0, repeats=4))
    assert order[::2] == [0, 1, 1, 0, 0, 1, 1, 0]


def test_a_ratio_and_its_interval_are_of_the_same_run_and_slow_is_called_slow(
    tiny_checkpoint_cache: Callable[..., Path],
) -> None:
    runtime = load_runtime(open_model(tiny_checkpoint_cache("llama")))
    mine = Timings(CELL, 0, [1.0, 1.0, 1.1], [[0.5] * 6] * 3)
    other = Timings(CELL, 0, [0.5, 0.5, 0.5], [[1.0] * 6] * 3)
    speed = speed_of(runtime.kernel, CELL, mine, other)
    assert speed.prefill_tokens_per_s == 80
    assert speed.decode_tokens_per_s == 4
    assert (speed.prefill_ratio, speed.decode_ratio) == (0.5, 2)
    assert (speed.ttft_p50_ms, speed.itl_p50_ms) == (1000, 500)
    assert list(speed.ttft_p50_ci95 or ()) == pytest.approx([1000, 1100])
    assert list(speed.itl_p50_ci95 or ()) == [500, 500]
    (note,) = slower_than(speed, "bfloat16")
    assert "prefill of 2 x 40 tokens is slower than the original in bfloat16: 0.50 x" in note


def test_cells_stay_within_the_context() -> None:
    cells = (Cell(1, 512), Cell(1, 2048), Cell(4, 512))
    assert fitting_cells(cells, 4096) == cells
    assert fitting_cells(cells, 512) == (Cell(1, 384), Cell(4, 384))
    assert fitting_cells(cells, 100) == ()


def test_a_cell_that_the_system_refuses_is_a_cell_and_the_others_are_measured(
    quantized: Callable[..., Path], tiny_checkpoint_cache: Callable[..., Path]
) -> None:
    cells, effort = (Cell(1 << 46, 8, 2), Cell(1, 8, 2)), Effort(warmups=0, repeats=2)
    found = measure_local(
        quantized("w4"), tiny_checkpoint_cache("llama"), cells=cells, effort=effort
    )
    assert [cell.fault for cell in found.cells] == ["out of memory", None]
    refused, measured = found.cells
    assert refused.reference_fault == "out of memory"
    assert (refused.repeats, refused.decode_tokens_per_s) == (0, None)
    assert refused.kernel == measured.kernel == "torch int4pack (cpu)"
    assert measured.decode_ratio is not None
    assert found.notes[0] == "no figures of memory: out of memory"
    assert found.memory.parts_bytes == {}


def test_a_cell_that_fails_otherwise_says_how(quantized: Callable[..., Path]) -> None:
    cells, effort = (Cell(1, 8, 2), Cell(1 << 60, 64, 2)), Effort(warmups=0, repeats=2)
    found = measure_local(quantized("w4"), cells=cells, effort=effort)
    assert [bool(cell.fault) for cell in found.cells] == [False, True]
    assert "overflowed" in str(found.cells[1].fault)
    assert found.memory.parts_bytes
