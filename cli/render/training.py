"""A training run as text and as a document."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quantkit.cli.tables import Part, table
from quantkit.cli.units import GIB, gib

if TYPE_CHECKING:
    from quantkit.planning.train.training import Schooling


def training_document(schooling: "Schooling") -> dict[str, Any]:
    """The run for JSON; sizes in bytes, those of figures on each GPU."""
    memory = {place: list(map(vars, figures)) for place, figures in vars(schooling.memory).items()}
    available = schooling.available
    room = {"host": schooling.host, "available": available, "fits": schooling.fits}
    return vars(schooling.training) | memory | room


def training_lines(schooling: "Schooling", hints: Sequence[str]) -> list[Part]:
    """What a GPU holds part by part, what the host does, and whether it fits."""
    training, memory = schooling.training, schooling.memory
    places = {"GPU": memory.gpu, "RAM": memory.cpu, "disk": memory.nvme}
    rows = [
        (figure.name, place, gib(figure.bytes), figure.rule)
        for place, figures in places.items()
        for figure in figures
        if figure.bytes
    ]
    need = schooling.needed
    lines: list[Part] = [
        training_line(schooling),
        table(("on each GPU", "in", "GiB", "rule"), rows),
        *(
            f"{place} of all {training.gpus} together: {gib(count)} GiB"
            for place, count in schooling.host.items()
            if count and training.gpus > 1
        ),
        "",
    ]
    if schooling.available is None:
        return [*lines, f"{need / GIB:.1f} GiB on each GPU"]
    room = schooling.available / GIB
    if schooling.fits:
        return [*lines, f"fits: {need / GIB:.1f} of {room:.1f} GiB on each GPU"]
    more = (need - schooling.available) / GIB
    lines.append(f"does not fit: {need / GIB:.1f} GiB on each GPU, {more:.1f} more than there are")
    return [*lines, *(f"try: {hint}" for hint in hints)]


def training_line(schooling: "Schooling") -> str:
    """How it is trained, and on what."""
    training, gpu = schooling.training, schooling.gpu
    where = f"{training.gpus} GPU{'s' if training.gpus > 1 else ''}"
    if gpu is not None:
        count = f"{training.gpus} x " if training.gpus > 1 else ""
        where = f"{count}{gpu.name} ({gpu.memory / GIB:.2f} GiB)"
    return (
        f"{training.method}, {where}, zero {training.zero}, checkpointing "
        f"{training.checkpointing}, {training.sequences} x {training.tokens:,} tokens on each"
    )
