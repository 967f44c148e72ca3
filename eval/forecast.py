"""What a run will take of this machine, planned before it starts and kept beside what it took."""

from dataclasses import dataclass
from pathlib import Path

import torch

from quantkit.checkpoint.tensors import DTYPE_NAMES
from quantkit.core.errors import ResourceError
from quantkit.eval.memory import resident_bytes
from quantkit.pipeline.measure import peak_rss
from quantkit.pipeline.memory import give_back
from quantkit.pipeline.prepare import Prepared
from quantkit.pipeline.write import sources
from quantkit.planning.architecture import Architecture, Layer
from quantkit.planning.headers import inventory_from_headers
from quantkit.planning.run import Run, RunPlan, plan_run

MARGIN = 1.1
"""A run is refused only where even this much less than planned would not fit."""


@dataclass(frozen=True)
class Forecast:
    """A run's plan, what this process held before it, and the peak that follows.

    The last two are None where the system does not tell, or where a GPU holds the tensors.
    """

    plan: RunPlan
    base_rss_bytes: int | None
    peak_rss_bytes: int | None

    def to_dict(self) -> dict[str, float]:
        """For the manifest; `work_bytes` are those of the run alone."""
        known = {"base_rss_bytes": self.base_rss_bytes, "peak_rss_bytes": self.peak_rss_bytes}
        found = {key: value for key, value in known.items() if value is not None}
        return {"bytes": self.plan.bytes, "work_bytes": self.plan.peak.bytes, **found}

    def line(self) -> str:
        """The plan in a few words."""
        out = f"{self.plan.bytes / 1e9:.3g} GB of weights"
        if self.peak_rss_bytes is None:
            return f"{out}, about {self.plan.peak.bytes / 1e9:.3g} GB of the device"
        return f"{out}, at most {self.peak_rss_bytes / 1e9:.3g} GB of memory"


def forecast(prepared: Prepared, ids: torch.Tensor | None, max_shard_size: int) -> Forecast:
    """The plan of a run over the calibration windows `ids` beside what this process holds now."""
    plan = plan_prepared(prepared, tuple(ids.shape) if ids is not None else (0, 0), max_shard_size)
    if prepared.model.device.type != "cpu":
        return Forecast(plan, None, None)
    _run_kernels()
    give_back()
    base = resident_bytes()
    return Forecast(plan, base, None if base is None else max(peak_rss(), base + plan.peak.bytes))


def plan_prepared(prepared: Prepared, windows: tuple[int, ...], max_shard_size: int) -> RunPlan:
    """The plan of a run that is ready: its linears and groups are those that were traced.

    `windows`: how many calibration windows there are, and how long they are; (0, 0) for none.
    """
    model, schemes = prepared.model, prepared.plan.schemes
    config = model.config.get_text_config()
    blocks = (Layer(None, None),) * len(model.skeleton.blocks)
    dtype = DTYPE_NAMES[model.source_dtype]
    hidden = int(config.hidden_size)
    shape = Architecture(
        "", hidden, int(config.vocab_size), tied=False, layers=blocks, context=None, dtype=dtype
    )
    facts = {fate.linear.name: fate.linear for fate in prepared.plan.fates}
    quantized = {
        tensor: (facts[linear], schemes[linear])
        for tensor, linear in sources(model, schemes).items()
    }
    run = Run(
        method=prepared.method.name,
        output=prepared.format,
        hidden=hidden,
        dtype=dtype,
        windows=windows[0],
        length=windows[1],
        max_shard_size=max_shard_size,
        device=model.device.type,
    )
    return plan_run(inventory_from_headers(model.checkpoint.names, shape), quantized, run)


@torch.no_grad()
def _run_kernels() -> None:
    """Run what a run will run, once and small: then all that libraries load for it is counted."""
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.eye(256, dtype=dtype)
        torch.nn.functional.linear(x, x)
        heads = x.view(1, 4, 64, 256)
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    square = torch.eye(256)
    torch.linalg.cholesky_ex(square)
    torch.linalg.solve_triangular(square, square, upper=False)


def require_memory(found: Forecast) -> None:
    """Nothing, where the planned peak may fit into the memory that is free.

    Raises:
        ResourceError: it does not by far.
    """
    free = available_bytes()
    if free is None or found.peak_rss_bytes is None:
        return
    most = found.plan.peak
    if most.bytes > MARGIN * free:
        need = f"this run needs about {most.bytes / 1e9:,.1f} GB of memory"
        raise ResourceError(
            f"{need}, {free / 1e9:,.1f} GB are free",
            why=f"{most.name}: {most.rule}",
            hint="fewer or shorter calibration windows, such as --samples 32",
        )


def available_bytes() -> int | None:
    """Memory that can be had without harm, swap included; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        return (kilobytes["MemAvailable"] + kilobytes["SwapFree"]) * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return None
