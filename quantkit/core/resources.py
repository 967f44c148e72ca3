"""What a quantization run needs: disk, memory and time."""

from collections.abc import Mapping
from dataclasses import dataclass

from quantkit.core.figure import Figure

TOKENS_PER_BATCH = 2048
"""Tokens that go through a block at once; fixed, so that results do not depend on a setting."""


@dataclass(frozen=True)
class Files:
    """The weight files of an artifact: bytes of each by its name, headers included."""

    sizes: Mapping[str, int]

    @property
    def bytes(self) -> int:
        """Bytes of all weight files, exactly."""
        return sum(self.sizes.values())

    @property
    def disk_bytes(self) -> int:
        """Bytes of free disk that the writer asks for: 5 % more, for all files but the weights."""
        return self.bytes * 21 // 20


@dataclass(frozen=True)
class Memory:
    """The stages of a run and the bytes that each takes above what the process holds before.

    On a CPU they lie in RAM: `base_bytes` are what Python with torch holds before the run, and
    `rss_bytes` the planned peak of the whole process; both are None where they are not known.
    On a GPU the stages are its own memory beside the CUDA context.
    """

    stages: tuple[Figure, ...]
    base_bytes: int | None = None
    rss_bytes: int | None = None

    @property
    def peak(self) -> Figure:
        """The stage that takes most memory."""
        return max(self.stages, key=lambda stage: stage.bytes)


@dataclass(frozen=True)
class Work:
    """Counts of what a run computes, as far as its time depends on them.

    `forward` and `hessian` are multiply-adds; `weights` are those that are quantized; `crossed` is
    their number times the inputs of each, `cubed` the third power of the inputs of each group.
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
    """What a run computes, and the seconds it takes: the fewest and the most.

    `dtype` is that of the computation, as safetensors names it. `seconds` is None where the machine
    was not timed.
    """

    work: Work
    dtype: str
    seconds: tuple[float, float] | None = None
