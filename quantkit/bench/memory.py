"""Memory of a running model by part, by block, and at the peak."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from quantkit.bench.linear import QuantizedLinear
from quantkit.model.peaks import resident_bytes
from quantkit.pipeline.measure import peak_rss
from quantkit.pipeline.memory import give_back
from quantkit.results.schema import Memory, Segments

BlockFacts = dict[str, float | int | str]


def measure_memory(
    network: nn.Module, blocks: Iterable[tuple[str, nn.Module]], work: Callable[[], object]
) -> Memory:
    """The peak memory of one call of `work`, which runs `network`, and the memory of each block.

    On a GPU these are the allocator's counts. On a CPU it is the resident size of the process: the
    peak during `work` if the system can reset it (Linux), else the peak of the process so far.
    """
    device = next(iter(network.parameters())).device
    parts = parts_bytes(network)
    give_back()
    before = resident_bytes()
    _reset_peak(device)
    with _watched(blocks, device) as found:
        work()
    if device.type == "cuda":
        return _of_allocator(device, parts, found)
    peak = peak_rss()
    if before is not None:
        parts["activations"] = max(0, peak - before)
    return Memory(host_peak_rss_bytes=peak, parts_bytes=parts, blocks=found)


def parts_bytes(network: nn.Module) -> dict[str, int]:
    """Bytes of the model's tensors: codes, scales, and unquantized tensors."""
    parts = {"linear": 0, "scales": 0, "unquantized": 0}
    for tensor, quantized in _tensors(network):
        held = "unquantized"
        if quantized:
            held = "scales" if tensor.is_floating_point() else "linear"
        parts[held] += stored_bytes(tensor)
    return parts


def stored_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor, including tensors in oneDNN's layout."""
    if tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]  # noqa: SLF001 - its only name
        return int(torch.ops.mkldnn._nbytes(tensor))  # noqa: SLF001
    return tensor.nbytes


def _tensors(module: nn.Module) -> Iterator[tuple[torch.Tensor, bool]]:
    """Each tensor once (a tied head is the embedding), and whether a quantized linear holds it."""
    seen: set[int] = set()
    for part in module.modules():
        quantized = isinstance(part, QuantizedLinear)
        for parameter in part.parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter, False
        for buffer in part.buffers(recurse=False):
            yield buffer, quantized


@contextmanager
def _watched(
    blocks: Iterable[tuple[str, nn.Module]], device: torch.device
) -> Iterator[list[BlockFacts]]:
    """A list to which the facts of each block are added when it runs."""
    found: list[BlockFacts] = []
    started = [0.0]

    def before(*_: Any) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
        started[0] = perf_counter()

    def after(name: str, block: nn.Module) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        facts: BlockFacts = {
            "block": name,
            "seconds": perf_counter() - started[0],
            "weight_bytes": sum(stored_bytes(tensor) for tensor, _ in _tensors(block)),
        }
        found.append(facts | _now(device))

    handles = []
    for name, block in blocks:
        handles.append(block.register_forward_pre_hook(before))
        handles.append(
            block.register_forward_hook(lambda module, *_, name=name: after(name, module))
        )
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _now(device: torch.device) -> BlockFacts:
    """The allocator's peaks since the last reset, or the process' resident size."""
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        return {
            f"{kind}_peak_bytes": int(stats[f"{kind}_bytes.all.peak"])
            for kind in ("allocated", "reserved", "requested")
        }
    resident = resident_bytes()
    return {} if resident is None else {"resident_bytes": resident}


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def _of_allocator(device: torch.device, parts: dict[str, int], blocks: list[BlockFacts]) -> Memory:
    """The peak over all blocks; each block resets the allocator's peak."""
    last = _now(device)  # final norm and head
    peaks = {key: max(int(b[key]) for b in [*blocks, last]) for key in last}
    allocated, reserved = peaks["allocated_peak_bytes"], peaks["reserved_peak_bytes"]
    free, total = torch.cuda.mem_get_info(device)
    parts["activations"] = max(0, allocated - sum(parts.values()))
    return Memory(
        outside_bytes=max(0, total - free - torch.cuda.memory_reserved(device)),
        allocated_peak_bytes=allocated,
        reserved_peak_bytes=reserved,
        fragmentation_fraction=(reserved - allocated) / reserved,
        host_peak_rss_bytes=peak_rss(),
        parts_bytes=parts,
        blocks=blocks,
        snapshot=segments_of(_snapshot()),
    )


def _snapshot() -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return found


def segments_of(snapshot: Iterable[Mapping[str, Any]]) -> list[Segments]:
    """The segments of `torch.cuda.memory_snapshot()`, summed by kind."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for segment in snapshot:
        kinds.setdefault(str(segment["segment_type"]), []).append(segment)
    found = []
    for kind, members in sorted(kinds.items()):
        found.append(
            Segments(
                kind=kind,
                segments=len(members),
                reserved_bytes=sum(s["total_size"] for s in members),
                allocated_bytes=sum(s["allocated_size"] for s in members),
                requested_bytes=sum(s["requested_size"] for s in members),
                inactive_bytes=sum(sum(_free(s)) for s in members if s["allocated_size"]),
                largest_free_bytes=max(max(_free(s), default=0) for s in members),
            )
        )
    return found


def _free(segment: Mapping[str, Any]) -> list[int]:
    return [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
