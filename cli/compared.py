"""Two forecasts side by side."""

from itertools import product
from typing import TYPE_CHECKING

from quantkit.cli.planned import faults, flush, gib, head_lines, needed

if TYPE_CHECKING:
    from quantkit.planning.forecast import Forecast, Outlook


def against_text(found: "Forecast", rival: "Forecast") -> str:
    """Two models build by build: sizes, or the memory that the load needs, and their ratio.

    A model that is quantized already is what it is: it stands beside every build of the other.
    """
    lines = [*head_lines(found), *head_lines(rival)[: 1 if rival.place else None], ""]
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
    return "\n".join([*lines, flush(head, rows), *faults(found), *faults(rival)])


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
