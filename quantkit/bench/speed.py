"""Speed and memory of one artifact, here and in an engine."""

from dataclasses import dataclass, field
from pathlib import Path

from quantkit.bench.local import LocalResult, measure_local
from quantkit.core.session import Session
from quantkit.results.schema import Memory, Speed


@dataclass(frozen=True)
class SpeedResult:
    """What `eval.json` holds of speed and memory; `notes` say what is slow or is missing."""

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
    """The artifact timed in this process (`local`), in vLLM (`engine`), or both.

    Ratios are to the `reference`; without one there are none.

    Raises:
        RefusedError: `engine`, and vLLM is not there or does not serve the artifact.
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
