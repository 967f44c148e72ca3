"""What must be equal for a run to go on with the blocks of one that was killed."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from quantkit.calibration.tokens import Calibration
from quantkit.checkpoint.shards import TensorSpec, plan_shards
from quantkit.core.manifest import environment
from quantkit.pipeline.calibrate import shareable
from quantkit.pipeline.prepare import Prepared
from quantkit.pipeline.processor import device_name
from quantkit.recipes.schema import document_of

NUMERICS = (
    "calibration", "core", "formats", "grid", "grids", "methods", "model", "pipeline", "stats",
)  # fmt: skip
"""Parts of quantkit that the bytes of a block depend on."""
JUDGING = ("gates", "gate_policy")


def job_of(
    prepared: Prepared, calibration: Calibration | None, specs: Sequence[TensorSpec], shards: int
) -> dict[str, Any]:
    """The job of a run as JSON: source, tokens, recipe, layout of the files, code and machine.

    Sizes and times stand for the content of the source's files, which would take long to hash.
    Threads, limits of memory and what is evaluated change no byte of a block.
    """
    model, recipe = prepared.model, document_of(shareable(prepared.plan.recipe))
    stamps = model.checkpoint.fingerprints
    heads = (shard.head for shard in plan_shards(specs, shards))
    return {
        "source": {name: [each.size, each.mtime_ns] for name, each in sorted(stamps.items())},
        "calibration": calibration.ledger.sha256 if calibration else None,
        "recipe": {key: part for key, part in recipe.items() if key not in JUDGING},
        "files": hashlib.sha256(b"".join(heads)).hexdigest(),
        "environment": environment(device_name(model.device)),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "code": code_sha256(),
    }


def code_sha256() -> str:
    """SHA-256 of the parts of quantkit that compute a block's bytes."""
    found = hashlib.sha256()
    home = Path(__file__).parent.parent
    for part in NUMERICS:
        for path in sorted((home / part).rglob("*.py")):
            found.update(f"{path.relative_to(home)}\n".encode())
            found.update(path.read_bytes())
    return found.hexdigest()
