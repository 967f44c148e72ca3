"""Speed and memory of one artifact, here and in an engine."""

from dataclasses import dataclass, field
from pathlib import Path

from quantkit.bench.local import LocalResult, measure_local
from quantkit.core.session import Session
from quantkit.results.schema import Memory, Speed


@dataclass(frozen=True)
class SpeedResult:
    """The `speed` and `memory` parts of `eval.json`; `notes` list what is slow or missing."""

    speed: Speed
    memory: Memory = field(default_factory=Memory)
    notes: tuple[str, ...] = ()


def measure_speed(
    artifact: Path,
    reference: Path | None = None,
    session: Session = Session(),
    *,
    local: bool = True,
    engine: bool = False,
) -> SpeedResult:
    """Time the artifact in this process (`local`), in vLLM (`engine`), or both.

    Ratios are to the `reference` and need one.

    Raises:
        RefusedError: `engine`, and vLLM is not installed or does not serve the artifact.
    """
    here = LocalResult()
    if local:
        here = measure_local(artifact, reference, session)
    served = []
    if engine:
        from quantkit.bench.vllm import measure_vllm

        served = measure_vllm(artifact, session)
    speed = Speed(local=list(here.cells), engine=served)
    return SpeedResult(speed, here.memory, tuple(here.notes))
