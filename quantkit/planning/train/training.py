"""Whether a training run fits a GPU, and what would let it; each hint is tried."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from quantkit.core.errors import RefusedError
from quantkit.core.figure import Figure
from quantkit.core.gpu import Gpu
from quantkit.core.plan import Plan
from quantkit.core.serving import Degrees, Load, Serving
from quantkit.core.training import Training, TrainingPlan, Zero
from quantkit.planning.builds import plain_build, summary_of
from quantkit.planning.model.weights import PlannedModel
from quantkit.planning.serve.settings import Settings
from quantkit.planning.train.memory import training_memory

Changes = dict[str, Any]
Step = tuple[str, Changes]
QLORA: Changes = {"method": "qlora"}
STAGES: tuple[Zero, ...] = ("0", "1", "2", "3")


def plan_training(model: PlannedModel, training: Training, gpu: Gpu | None, load: Load) -> Plan:
    """The plan of a training run on the load's sequences, with options at which it fits.

    Raises:
        RefusedError: offloading that no sharding of this kind has, or a quantized model.
    """
    training = replace(training, tokens=load.context, sequences=load.sequences)
    planned = train(model, training, gpu)
    planned = replace(planned, hints=training_hints(model, training, gpu))
    serving = Serving(summary_of(model), None, load, (plain_build(model),))
    return Plan(serving=serving, training=planned)


def train(model: PlannedModel, training: Training, gpu: Gpu | None) -> TrainingPlan:
    """A training run with the overheads of a process that serves nothing.

    Raises:
        RefusedError: offloading that no sharding of this kind has, or a quantized model.
    """
    if model.quantized:
        raise RefusedError(
            f"`{model.name}` is quantized already, and its files lack the weights to train",
            why=f"its config.json has a quantization_config of {model.quantized}",
            hint="the original model, in bf16, fp16 or fp32",
        )
    memory = training_memory(model.architecture, model.inventory, training)
    extra = Settings().overheads(Figure("activations", 0, ""), Degrees(training.gpus))
    memory = replace(memory, gpu=(*memory.gpu, *extra))
    return TrainingPlan(training, memory, gpu)


def training_hints(model: PlannedModel, training: Training, gpu: Gpu | None) -> tuple[str, ...]:
    """Options at which a run fits, each by itself; where none is enough, the least of them at once.

    What keeps the method comes first, with the least of each option (ZeRO stage, context); then
    QLoRA, whose result is another. None where it fits already, or with all of them does not.
    """
    if train(model, training, gpu).fits:
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
    return train(model, training, gpu).fits


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
