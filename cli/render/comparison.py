"""Two plans side by side."""

from itertools import product
from typing import TYPE_CHECKING

from quantkit.cli.render.plan import faults, head_lines
from quantkit.cli.render.plan_verdict import needed
from quantkit.cli.render.training import training_line
from quantkit.cli.tables import Part, Table, flush
from quantkit.core.units import UNIT_NOTE, excess, gigabytes

if TYPE_CHECKING:
    from quantkit.core.plan import Plan
    from quantkit.core.serving import PlannedBuild, Serving
    from quantkit.core.training import TrainingPlan


def against_text(plan: "Plan", rival: "Plan") -> list[Part]:
    """Two models build by build: sizes, or the memory that the load needs, and their ratio.

    A model that is quantized already is what it is: it stands beside every build of the other.
    """
    serving, other = plan.serving, rival.serving
    assert serving is not None
    assert other is not None
    lines: list[Part] = [*head_lines(serving), *head_lines(other)[: 1 if other.server else None]]
    lines += [UNIT_NOTE, ""]
    names = (serving.model.name, other.model.name)
    if plan.training is not None and rival.training is not None:
        trained = (plan.training, rival.training)
        return [*lines, training_line(trained[0]), _trained(trained, names)]
    rows: list[tuple[object, ...]] = []
    for name, one, two in _pairs(serving, other):
        ours, theirs = needed(one, plan), needed(two, rival)
        ratio = round(theirs / ours, 3) if ours and theirs else None
        rows.append((name, *(gigabytes(n) if n else "refused" for n in (ours, theirs)), ratio))
        if serving.server is not None:
            served = (one.deployment, two.deployment)
            rows[-1] += tuple(d.longest or "none" if d else None for d in served)
    head = ["build, GB", *names, "ratio"]
    if serving.server is not None:
        head += [f"context of {name}" for name in names]
    return [*lines, flush(head, rows), *faults(serving), *faults(other)]


def _trained(trained: tuple["TrainingPlan", "TrainingPlan"], names: tuple[str, str]) -> Table:
    """The need of one run for either model, and by how much a GPU that was named has too little."""
    needs = [each.needed for each in trained]
    row: list[object] = [trained[0].training.method, *map(gigabytes, needs)]
    row.append(round(needs[1] / needs[0], 3))
    head = ["training, GB", *names, "ratio"]
    for name, each in zip(names, trained, strict=True):
        if each.available is not None:
            head.append(f"fits: {name}")
            row.append("yes" if each.fits else f"{excess(each.needed - each.available)} over")
    return flush(head, [row])


def _pairs(
    serving: "Serving", other: "Serving"
) -> list[tuple[str, "PlannedBuild", "PlannedBuild"]]:
    """The builds that are set side by side, with a name for both."""
    everyone = serving.model.quantized or other.model.quantized
    return [
        (a.name if a.name == b.name else f"{a.name}, {b.name}", a, b)
        for a, b in product(serving.builds, other.builds)
        if everyone or _recipe_name(a) == _recipe_name(b)
    ]


def _recipe_name(build: "PlannedBuild") -> str | None:
    return build.recipe.name if build.recipe else None
