"""Two forecasts side by side."""

from itertools import product
from typing import TYPE_CHECKING

from quantkit.cli.render.plan import faults, head_lines
from quantkit.cli.render.plan_verdict import needed
from quantkit.cli.render.training import training_line
from quantkit.cli.tables import Part, Table, flush
from quantkit.cli.units import excess, gib

if TYPE_CHECKING:
    from quantkit.planning.forecast import Forecast, Outlook
    from quantkit.planning.train.training import Schooling


def against_text(found: "Forecast", rival: "Forecast") -> list[Part]:
    """Two models build by build: sizes, or the memory that the load needs, and their ratio.

    A model that is quantized already is what it is: it stands beside every build of the other.
    """
    lines = [*head_lines(found), *head_lines(rival)[: 1 if rival.place else None], ""]
    if found.schooling is not None and rival.schooling is not None:
        trained = (found.schooling, rival.schooling)
        return [*lines, training_line(trained[0]), _trained(trained, found, rival)]
    rows: list[tuple[object, ...]] = []
    for name, outlook, other in _pairs(found, rival):
        ours, theirs = needed(outlook, found), needed(other, rival)
        ratio = round(theirs / ours, 3) if ours and theirs else None
        rows.append((name, *(gib(n) if n else "refused" for n in (ours, theirs)), ratio))
        if found.place is not None:
            served = (outlook.deployment, other.deployment)
            rows[-1] += tuple(d.longest or "none" if d else None for d in served)
    names = (found.model.name, rival.model.name)
    head = ["build, GiB", *names, "ratio"]
    if found.place is not None:
        head += [f"context of {name}" for name in names]
    return [*lines, flush(head, rows), *faults(found), *faults(rival)]


def _trained(
    trained: tuple["Schooling", "Schooling"], found: "Forecast", rival: "Forecast"
) -> Table:
    """The need of one run for either model, and by how much a GPU that was named has too little."""
    needs = [each.needed for each in trained]
    row: list[object] = [trained[0].training.method, *map(gib, needs)]
    row.append(round(needs[1] / needs[0], 3))
    names = (found.model.name, rival.model.name)
    head = ["training, GiB", *names, "ratio"]
    for name, each in zip(names, trained, strict=True):
        if each.available is not None:
            head.append(f"fits: {name}")
            row.append("yes" if each.fits else f"{excess(each.needed - each.available)} over")
    return flush(head, [row])


def _pairs(found: "Forecast", rival: "Forecast") -> list[tuple[str, "Outlook", "Outlook"]]:
    """The builds that are set side by side, with a name for both."""
    everyone = found.model.quantized or rival.model.quantized
    return [
        (a.build.name if a.build.name == b.build.name else f"{a.build.name}, {b.build.name}", a, b)
        for a, b in product(found.outlooks, rival.outlooks)
        if everyone or _maker(a) == _maker(b)
    ]


def _maker(outlook: "Outlook") -> str | None:
    return outlook.build.recipe.name if outlook.build.recipe else None
