"""The resources of a quantization run: disk, memory and time."""

from collections.abc import Mapping
from dataclasses import dataclass

from quantkit.core.figure import Figure

TOKENS_PER_BATCH = 2048
"""Tokens per forward of a block; fixed, so that results do not depend on a setting."""


@dataclass(frozen=True)
class Files:
    """The weight files of an artifact: bytes of each by its name, headers included.

    `kept`: bytes that lie beside them during the run, from which it goes on if it is killed: the
    hidden states after the last block, and after the one that is being finished.
    """

    sizes: Mapping[str, int]
    kept: int = 0

    @property
    def bytes(self) -> int:
        """Bytes of all weight files, exactly."""
        return sum(self.sizes.values())

    @property
    def disk_bytes(self) -> int:
        """Bytes of free disk that the writer requires: 5 % more, for all other files."""
        return self.bytes * 21 // 20 + self.kept


@dataclass(frozen=True)
class Holding:
    """How a run holds what its calibration tokens are in a block; no result depends on it.

    Forwards wait at each group of a block and go on when it is solved. Where they are `replayed`,
    nothing of them waits: each group gets its inputs from forwards of its own, from the block's
    start. Where hidden states are `offloaded`, they are in the host's memory between two forwards,
    or where they are `spilled`, in a file.
    """

    replayed: bool = False
    offloaded: bool = False
    spilled: bool = False

    def __str__(self) -> str:
        if not self.replayed:
            return "paused"
        if self.spilled:
            return "replayed from disk"
        return "replayed from host memory" if self.offloaded else "replayed"


PAUSED, REPLAYED = Holding(), Holding(replayed=True)
OFFLOADED = Holding(replayed=True, offloaded=True)
SPILLED = Holding(replayed=True, offloaded=True, spilled=True)


@dataclass(frozen=True)
class Memory:
    """The stages of a run and the bytes that each allocates.

    On a CPU this is RAM in addition to `base_bytes`, which Python with torch holds before the run;
    `rss_bytes` is the planned peak of the whole process. Both are None where unknown. On a GPU it
    is device memory in addition to the CUDA context.

    `forwards`: how often a block's linears compute each token, for the way of `holding`.
    `spilled_bytes`: of the file where an evaluation's hidden states wait, if they do.
    """

    stages: tuple[Figure, ...]
    base_bytes: int | None = None
    rss_bytes: int | None = None
    holding: Holding = PAUSED
    forwards: float = 1.0
    spilled_bytes: int = 0

    @property
    def peak(self) -> Figure:
        """The stage with the largest memory."""
        return max(self.stages, key=lambda stage: stage.bytes)


@dataclass(frozen=True)
class Work:
    """Operation counts from which the time of a run is computed.

    `forward` and `hessian`: multiply-adds. `weights`: number of quantized weights. `crossed`: sum
    of outputs * inputs^2 over linears. `cubed`: sum of inputs^3 over groups.
    """

    forward: int = 0
    hessian: int = 0
    weights: int = 0
    crossed: int = 0
    cubed: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.forward + other.forward,
            self.hessian + other.hessian,
            self.weights + other.weights,
            self.crossed + other.crossed,
            self.cubed + other.cubed,
        )


@dataclass(frozen=True)
class Time:
    """Operations of a run and its time in seconds, (least, most).

    `dtype` is that of the computation, as safetensors names it. `seconds` is None on a machine
    that was not timed.
    """

    work: Work
    dtype: str
    seconds: tuple[float, float] | None = None
