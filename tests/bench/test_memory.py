"""Bytes by part and by block, against what the tensors and the system say."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from quantkit.bench.linear import Workload
from quantkit.bench.local import measure_local
from quantkit.bench.memory import (
    measure_memory,
    parts_bytes,
    segments_of,
    stored_bytes,
)
from quantkit.bench.runtime import load_runtime
from quantkit.bench.timing import Cell, Effort
from quantkit.model.open import open_model
from quantkit.model.peaks import resident_bytes


def test_parts_are_the_codes_the_scales_and_the_rest(
    quantized: Callable[..., Path], tiny_checkpoint_cache: Callable[..., Path]
) -> None:
    dense = load_runtime(open_model(tiny_checkpoint_cache("llama"))).network
    parts = parts_bytes(load_runtime(open_model(quantized("w4")), Workload(8)).network)
    linears = [m for m in dense.model.layers.modules() if isinstance(m, nn.Linear)]
    numbers = sum(linear.weight.numel() for linear in linears)
    assert parts["linear"] == numbers // 2
    assert parts["scales"] == numbers // 32 * 2 * 4  # a scale and an offset in fp32
    whole = sum(p.nbytes for p in dense.parameters())
    buffers = sum(b.nbytes for b in dense.buffers())
    assert parts["unquantized"] == whole - 4 * numbers + buffers


def test_a_tied_head_is_counted_once(tiny_checkpoint_cache: Callable[..., Path]) -> None:
    tied = load_runtime(open_model(tiny_checkpoint_cache("llama_tied"))).network
    whole = load_runtime(open_model(tiny_checkpoint_cache("llama"))).network
    less = parts_bytes(whole)["unquantized"] - parts_bytes(tied)["unquantized"]
    assert less == 256 * 128 * 4


def test_a_weight_in_onednns_layout_has_a_size() -> None:
    packed = torch.ops.onednn.qlinear_prepack(torch.zeros(64, 128, dtype=torch.int8), None)
    assert 64 * 128 <= stored_bytes(packed) <= 64 * 128 + 64 * 16


class Hungry(nn.Module):
    """Holds a little and takes a lot while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(40 << 20, dtype=torch.uint8).max()


@pytest.mark.skipif(resident_bytes() is None, reason="the system does not tell the size")
def test_the_peak_of_a_pass_and_its_blocks_are_seen() -> None:
    block = Hungry()
    measured = measure_memory(block, [("a", block)], lambda: block(torch.zeros(1)))
    assert 36 << 20 < measured.parts_bytes["activations"] < 60 << 20
    (facts,) = measured.blocks
    assert (facts["block"], facts["weight_bytes"]) == ("a", 4000)
    assert isinstance(facts["seconds"], float)


def test_an_artifact_is_measured_whole(
    quantized: Callable[..., Path], tiny_checkpoint_cache: Callable[..., Path]
) -> None:
    reference = tiny_checkpoint_cache("llama")
    effort, cells = Effort(warmups=0, repeats=2), (Cell(1, 64, 4), Cell(2, 32, 4))
    found = measure_local(quantized("w4"), reference, cells=cells, effort=effort)
    assert [(s.batch, s.context_tokens) for s in found.cells] == [(1, 64), (2, 32)]
    for speed in found.cells:
        assert speed.kernel == "torch int4pack (cpu)"
        assert speed.decode_ratio is not None
        assert speed.decode_ratio > 0
    assert found.memory.kv_bytes_per_token == 2 * 2 * 2 * 32 * 4
    assert [b["block"] for b in found.memory.blocks] == ["model.layers.0", "model.layers.1"]
    assert found.memory.parts_bytes["kv"] == 65 * found.memory.kv_bytes_per_token


def segment(kind: str, total: int, allocated: tuple[int, ...]) -> dict[str, object]:
    """A segment as torch.cuda.memory_snapshot() gives it, what is free at its end."""
    blocks = [{"size": size, "state": "active_allocated"} for size in allocated]
    if rest := total - sum(allocated):
        blocks.append({"size": rest, "state": "inactive"})
    used = sum(allocated)
    return {
        "segment_type": kind,
        "total_size": total,
        "allocated_size": used,
        "requested_size": used - len(allocated),
        "blocks": blocks,
    }


def test_a_snapshot_is_summed_up_by_kind_of_segment() -> None:
    snapshot = [segment("large", 20, (5, 9)), segment("large", 30, ()), segment("small", 2, (2,))]
    large, small = segments_of(snapshot)
    assert (large.kind, large.segments, large.reserved_bytes) == ("large", 2, 50)
    assert (large.allocated_bytes, large.requested_bytes) == (14, 12)
    assert large.inactive_bytes == 6  # the second segment is free as a whole: no fragmentation
    assert large.largest_free_bytes == 30
    assert (small.inactive_bytes, small.largest_free_bytes) == (0, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpus_own_snapshot_adds_up_to_what_its_allocator_reserved() -> None:
    block = Hungry().cuda()
    memory = measure_memory(block, [("a", block)], lambda: block(torch.zeros(1).cuda()))
    assert sum(s.reserved_bytes for s in memory.snapshot) == torch.cuda.memory_reserved()
