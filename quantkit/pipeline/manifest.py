"""The manifest of a finished artifact."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from quantkit.calibration.tokens import Calibration
from quantkit.checkpoint.stored import DTYPE_BYTES, Source
from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.manifest import Manifest, environment
from quantkit.core.rules import kv_cache_fault, load_fault
from quantkit.pipeline.built import Built
from quantkit.pipeline.calibrate import calibration_remarks
from quantkit.pipeline.prepare import Prepared
from quantkit.pipeline.processor import device_name


def manifest_of(
    source: Source,
    prepared: Prepared,
    recipe: Mapping[str, Any],
    calibration: Calibration | None,
    built: Built,
) -> Manifest:
    """The complete manifest of an artifact; source files are identified by hashes, not by paths.

    The caller fills in `planned` and `measured` resources and the evaluation.
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
        quantized_bits_per_weight=_quantized_bits(prepared),
        evaluation=None,
        engines=dict(_engines(prepared)),
        remarks=(*prepared.plan.remarks, *remarks),
        environment=environment(device_name(prepared.model.device)),
        planned={},
        measured={},
        linear_share=prepared.plan.share,
        expert_tokens=built.expert_tokens,
    )


def _quantized_bits(prepared: Prepared) -> float | None:
    """Stored bits of a weight in the quantized linears, with scales and zeros; None without any."""
    stored = weights = 0
    for each in prepared.plan.dispositions:
        if each.scheme is not None:
            dtype = prepared.model.dtype_name
            layout = prepared.format.layout(each.scheme, each.linear, dtype)
            stored += sum(DTYPE_BYTES[kind] * math.prod(shape) for kind, shape in layout.values())
            weights += each.linear.out_features * each.linear.in_features
    return 8 * stored / weights if weights else None


def _engines(prepared: Prepared) -> Iterator[tuple[str, str | None]]:
    """Each known engine, and the reason why it does not load the artifact, or None."""
    for name in registry.names("engines"):
        engine: Engine = registry.load("engines", name, "ENGINE")
        reasons = (
            load_fault(engine, prepared.format, each.scheme, each.linear)
            for each in prepared.plan.dispositions
            if each.scheme is not None
        )
        reason = next((r for r in reasons if r), None) or engine.refuses_mix(prepared.plan.by_name)
        reason = reason or kv_cache_fault(prepared.plan.recipe.kv_cache, engine)
        yield name, reason.partition("; try: ")[0] if reason else None
