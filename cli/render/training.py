"""A training run as text and as a document."""

from typing import TYPE_CHECKING, Any

from quantkit.cli.tables import Part, table
from quantkit.core.units import excess, gigabytes

if TYPE_CHECKING:
    from quantkit.core.training import TrainingPlan


def training_document(plan: "TrainingPlan") -> dict[str, Any]:
    """The run for JSON; sizes in bytes, those of figures on each GPU."""
    memory = {place: list(map(vars, figures)) for place, figures in vars(plan.memory).items()}
    available = plan.available
    room = {"host": plan.host, "available": available, "fits": plan.fits}
    return vars(plan.training) | memory | room


def training_lines(plan: "TrainingPlan") -> list[Part]:
    """What a GPU holds part by part, what the host does, and whether it fits."""
    training, memory = plan.training, plan.memory
    places = {"GPU": memory.gpu, "RAM": memory.cpu, "disk": memory.nvme}
    rows = [
        (figure.name, place, gigabytes(figure.bytes), figure.rule)
        for place, figures in places.items()
        for figure in figures
        if figure.bytes
    ]
    need = plan.needed
    lines: list[Part] = [
        training_line(plan),
        table(("on each GPU", "in", "GB", "rule"), rows),
        *(
            f"{place} of all {training.gpus} together: {gigabytes(count)} GB"
            for place, count in plan.host.items()
            if count and training.gpus > 1
        ),
        "",
    ]
    if plan.available is None:
        return [*lines, f"{gigabytes(need)} GB on each GPU"]
    if plan.fits:
        room = gigabytes(plan.available)
        return [*lines, f"fits: {gigabytes(need)} of {room} GB on each GPU"]
    more = excess(need - plan.available)
    lines.append(f"does not fit: it needs {gigabytes(need)} GB on each GPU, {more} GB too many")
    return [*lines, *(f"try: {hint}" for hint in plan.hints)]


def training_line(plan: "TrainingPlan") -> str:
    """How it is trained, and on what."""
    training, gpu = plan.training, plan.gpu
    where = f"{training.gpus} GPU{'s' if training.gpus > 1 else ''}"
    if gpu is not None:
        count = f"{training.gpus} x " if training.gpus > 1 else ""
        where = f"{count}{gpu.name} ({gigabytes(gpu.memory)} GB)"
    return (
        f"{training.method}, {where}, zero {training.zero}, checkpointing "
        f"{training.checkpointing}, {training.sequences} x {training.tokens:,} tokens on each"
    )
