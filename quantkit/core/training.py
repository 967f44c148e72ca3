"""A training run: its settings, and its memory on each GPU."""

from dataclasses import dataclass
from typing import Literal

from quantkit.core.figure import Figure
from quantkit.core.gpu import Gpu

TrainingMethod = Literal["full", "lora", "qlora"]
Optimizer = Literal["adamw", "adamw-8bit"]
Zero = Literal["0", "1", "2", "3", "fsdp"]
Offload = Literal["none", "cpu", "nvme"]
Checkpointing = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Training:
    """Settings of a training run; one step on a GPU has `sequences` sequences of `tokens` tokens.

    `rank`: rank of the LoRA adapters, on every linear of the blocks. `gradient_bytes`: 4 where
    gradients are accumulated in fp32, as in DeepSpeed.
    """

    method: TrainingMethod = "full"
    optimizer: Optimizer = "adamw"
    gpus: int = 1
    zero: Zero = "0"
    checkpointing: Checkpointing = "none"
    offload: Offload = "none"
    tokens: int = 2048
    sequences: int = 1
    rank: int = 16
    gradient_bytes: int = 2


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of one GPU, and its share of what is offloaded to RAM and disk."""

    gpu: tuple[Figure, ...]
    cpu: tuple[Figure, ...]
    nvme: tuple[Figure, ...]


@dataclass(frozen=True)
class TrainingPlan:
    """A training run, its memory per GPU by part, and the GPU if one is given.

    `hints`: options with which it would fit.
    """

    training: Training
    memory: TrainingMemory
    gpu: Gpu | None
    hints: tuple[str, ...] = ()

    @property
    def available(self) -> int | None:
        """Bytes of the GPU's memory; None without a GPU."""
        return self.gpu.memory if self.gpu else None

    @property
    def host(self) -> dict[str, int]:
        """Bytes that all ranks together keep in RAM and on disk."""
        away = {"RAM": total(self.memory.cpu), "disk": total(self.memory.nvme)}
        return {place: self.training.gpus * share for place, share in away.items()}

    @property
    def needed(self) -> int:
        """Bytes on each GPU."""
        return total(self.memory.gpu)

    @property
    def fits(self) -> bool:
        """Whether the run fits the GPU; True without a GPU."""
        return self.available is None or self.needed <= self.available


def total(figures: tuple[Figure, ...]) -> int:
    """Bytes of all figures together."""
    return sum(figure.bytes for figure in figures)
