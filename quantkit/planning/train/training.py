"""Whether a training run fits a GPU, and what would let it; each hint is tried."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quantkit.core.errors import RefusedError
from quantkit.planning.figure import Figure
from quantkit.planning.model.parallel import Degrees
from quantkit.planning.model.weights import PlannedModel
from quantkit.planning.serve.hardware import Gpu
from quantkit.planning.serve.settings import Settings
from quantkit.planning.train.memory import Training, TrainingMemory, Zero, total, training_memory

Changes = dict[str, Any]
Step = tuple[str, Changes]
QLORA: Changes = {"method": "qlora"}
STAGES: tuple[Zero, ...] = ("0", "1", "2", "3")


@dataclass(frozen=True)
class Schooling:
    """A training run on each of its GPUs, its memory part by part, and the GPU if one was named."""

    training: Training
    memory: TrainingMemory
    gpu: Gpu | None

    @property
    def available(self) -> int | None:
        """Bytes that a GPU has."""
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
        """Whether a GPU suffices, as far as one was named."""
        return self.available is None or self.needed <= self.available


def school(model: PlannedModel, training: Training, gpu: Gpu | None) -> Schooling:
    """A training run with the overheads of a process that serves nothing.

    Raises:
        RefusedError: offloading that no sharding of this kind has, or a quantized model.
    """
    if model.quantized:
        raise RefusedError(
            f"`{model.name}` is quantized already, and what would be trained is not in its files",
            why=f"its config.json has a quantization_config of {model.quantized}",
            hint="the original model, in bf16, fp16 or fp32",
        )
    memory = training_memory(model.architecture, model.inventory, training)
    extra = Settings().overheads(Figure("activations", 0, ""), Degrees(training.gpus))
    memory = replace(memory, gpu=(*memory.gpu, *extra))
    return Schooling(training, memory, gpu)


def training_hints(model: PlannedModel, training: Training, gpu: Gpu | None) -> tuple[str, ...]:
    """Options at which a run fits, each by itself; where none is enough, the least of them at once.

    What keeps the method comes first, with the least of each option (ZeRO stage, context); then
    QLoRA, whose result is another. None where it fits already, or with all of them does not.
    """
    if school(model, training, gpu).fits:
        return ()
    steps = list(_steps(training))
    alone: dict[str, str] = {}
    for option, less in steps:
        if _fits(model, replace(training, **less), gpu):
            alone.setdefault(option.split(" ")[0], option)
    other: list[Step] = [] if training.method == "qlora" else [("--train qlora", QLORA)]
    kept = tuple(alone.values()) or _together(model, training, gpu, steps)
    if other and _fits(model, replace(training, **QLORA), gpu):
        return (*kept, other[0][0])
    if not other or alone:
        return kept
    return kept + _together(model, training, gpu, other + steps)


def _together(
    model: PlannedModel, training: Training, gpu: Gpu | None, steps: list[Step]
) -> tuple[str, ...]:
    """As many of the steps as it takes, without what is needless, as one line; none if too few."""
    options: dict[str, Step] = {}  # a later step states anew what an earlier one did
    for step in steps:
        options[step[0].split(" ")[0]] = step
        if _fits(model, _changed(training, options), gpu):
            break
    else:
        return ()
    for name in tuple(options):
        fewer = {other: step for other, step in options.items() if other != name}
        if _fits(model, _changed(training, fewer), gpu):
            options = fewer
    return (" ".join(option for option, _ in options.values()),)


def _changed(training: Training, options: Mapping[str, Step]) -> Training:
    changes: Changes = {}
    for _, less in options.values():
        changes |= less
    return replace(training, **changes)


def _fits(model: PlannedModel, training: Training, gpu: Gpu | None) -> bool:
    return school(model, training, gpu).fits


def _steps(training: Training) -> Iterator[Step]:
    """What takes less than the run does and keeps its method, by option, the cheapest first."""
    if training.checkpointing != "full":
        yield "--checkpointing full", {"checkpointing": "full"}
    if training.sequences > 1:
        yield "--batch 1", {"sequences": 1}
    if training.gpus > 1 and training.zero in STAGES:
        for stage in STAGES[STAGES.index(training.zero) + 1 :]:
            yield f"--zero {stage}", {"zero": stage}
    if training.offload == "none":
        yield "--zero 3 --offload cpu", {"zero": "3", "offload": "cpu"}
    for shorter in (2, 4, 8, 16):
        if training.tokens // shorter >= 512:
            tokens = training.tokens // shorter
            yield f"--context {tokens}", {"tokens": tokens}
