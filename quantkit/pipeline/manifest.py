"""The manifest of a finished artifact."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from quantkit.calibration.tokens import Calibration
from quantkit.checkpoint.files import found_in
from quantkit.checkpoint.source import Source
from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.manifest import Manifest, environment
from quantkit.pipeline.build import Built
from quantkit.pipeline.calibrate import calibration_remarks
from quantkit.pipeline.prepare import Prepared


def manifest_of(
    source: Source,
    prepared: Prepared,
    recipe: Mapping[str, Any],
    calibration: Calibration | None,
    built: Built,
) -> Manifest:
    """Everything that made the artifact; source files are named by their hashes, not by paths.

    What the run was planned to take and took is left to whoever planned and measured it.
    """
    checkpoint = prepared.model.checkpoint
    weights = sum(math.prod(info.shape) for info in checkpoint.names.values())
    files = {name: checkpoint.sha256(name) for name in sorted(checkpoint.fingerprints)}
    wanted = prepared.plan.recipe.calibration
    remarks = calibration_remarks(calibration, wanted) if calibration else ()
    return Manifest(
        source={"id": source.id, "revision": source.revision, "files": files},
        recipe=recipe,
        format=prepared.format.name,
        calibration=asdict(calibration.ledger) if calibration else None,
        modules=tuple(asdict(record) for record in built.modules),
        tensors=built.ledger,
        side_files=built.side_files,
        bytes=built.bytes,
        bits_per_weight=8 * built.bytes / weights,
        evaluation=None,
        engines=dict(_engines(prepared)),
        remarks=(*prepared.plan.remarks, *remarks),
        environment=environment(device_name(prepared.model.device)),
        planned={},
        measured={},
    )


def _engines(prepared: Prepared) -> Iterator[tuple[str, str | None]]:
    """Each known engine and why it does not load the artifact, None where it does."""
    for name in registry.names("engines"):
        engine: Engine = registry.load("engines", name, "ENGINE")
        reasons = (
            engine.refuses(prepared.format.name, each.scheme, each.linear)
            for each in prepared.plan.dispositions
            if each.scheme is not None
        )
        reason = next((r for r in reasons if r), None)
        yield name, reason.partition("; try: ")[0] if reason else None


def device_name(device: torch.device) -> str:
    """The kind of device and the name of its processor, e.g. `cpu, Example 9000`."""
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    name = processor()
    return f"{device.type}, {name}" if name else device.type


def processor() -> str | None:
    """The name of this machine's processor, where the system tells it."""
    return found_in(Path("/proc/cpuinfo"), r"^model name\s*: (.+)$")
