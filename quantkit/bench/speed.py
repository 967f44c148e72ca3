"""Speed and memory of one artifact, in an engine and here."""

from dataclasses import dataclass, field
from pathlib import Path

from quantkit.bench.local import LocalResult, measure_local
from quantkit.core.session import Session
from quantkit.pipeline.memory import give_back_gpu
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
    """Time the artifact in vLLM (`engine`), in this process (`local`), or both in this order.

    Each starts with the GPU memory that others left to it. Ratios are to the `reference` and need
    one.

    Raises:
        RefusedError: `engine`, and vLLM is not installed or does not serve the artifact.
    """
    give_back_gpu()
    served = []
    if engine:
        from quantkit.bench.vllm import measure_vllm

        served = measure_vllm(artifact, session)
    here = LocalResult()
    if local:
        here = measure_local(artifact, reference, session)
    speed = Speed(local=list(here.cells), engine=served)
    return SpeedResult(speed, here.memory, tuple(here.notes))
