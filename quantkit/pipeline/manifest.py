"""The manifest of a finished artifact."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from quantkit.calibration.tokens import Calibration
from quantkit.checkpoint.files import sha256
from quantkit.checkpoint.source import Source
from quantkit.core.manifest import Manifest, environment
from quantkit.pipeline.build import Built
from quantkit.pipeline.measure import Cost
from quantkit.pipeline.prepare import Prepared


def manifest_of(
    source: Source,
    prepared: Prepared,
    recipe: Mapping[str, Any],
    calibration: Calibration | None,
    built: Built,
    evaluation: Mapping[str, Any] | None,
    cost: Cost,
) -> Manifest:
    """Everything that made the artifact; source files are named by their hashes, not by paths."""
    checkpoint = prepared.model.checkpoint
    weights = sum(math.prod(info.shape) for info in checkpoint.names.values())
    files = {name: sha256(checkpoint.folder / name) for name in sorted(checkpoint.fingerprints)}
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
        evaluation=evaluation,
        remarks=prepared.plan.remarks,
        environment=environment(),
        measured=asdict(cost),
    )
