"""The plan of a run: the scheme of each linear and the resources needed, before any work."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quantkit.core import registry
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import Check, LinearFacts
from quantkit.core.notebook import html_table
from quantkit.core.recipe import Override, Recipe, SchemeSpec
from quantkit.core.resources import Files, Memory, Time
from quantkit.core.scheme import Scheme
from quantkit.core.serving import PlannedBuild, Serving
from quantkit.core.training import TrainingPlan

LEFT_OUT = "left out by the recipe"


@dataclass(frozen=True)
class Disposition:
    """The decision about one linear: its scheme, or None with the reason why it is unquantized."""

    linear: LinearFacts
    scheme: Scheme | None
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """The plan that `quantize --dry-run`, `plan`, `fit` and a run share; unplanned parts are None.

    `selected`: the recipe of the run, None where the model stays unquantized. `dispositions`: the
    decision about each linear; `remarks` explain them. `files`, `memory` and `time`: the resources
    of the run, `evaluation` the memory of the evaluation after it. `serving`: builds compared on a
    GPU. `training`: a training run.
    """

    selected: Recipe | None = None
    dispositions: tuple[Disposition, ...] = ()
    remarks: tuple[str, ...] = ()
    files: Files | None = None
    memory: Memory | None = None
    time: Time | None = None
    serving: Serving | None = None
    training: TrainingPlan | None = None
    evaluation: Memory | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run.

        Raises:
            LookupError: there is no run, because the model stays unquantized.
        """
        if self.selected is None:
            raise LookupError("the plan contains no recipe: the model stays unquantized")
        return self.selected

    @property
    def schemes(self) -> dict[str, Scheme]:
        """Quantized linears and their schemes."""
        return {d.linear.name: d.scheme for d in self.dispositions if d.scheme is not None}

    @property
    def share(self) -> float:
        """Share of the blocks' linear weights that is quantized; what a recipe leaves out aside."""
        sizes = [
            (each.linear.out_features * each.linear.in_features, each.scheme is not None)
            for each in self.dispositions
            if each.reason != LEFT_OUT
        ]
        total = sum(size for size, _ in sizes)
        return sum(size for size, quantized in sizes if quantized) / total if total else 0.0

    @property
    def by_name(self) -> dict[str, Scheme | None]:
        """Linear -> its scheme as it is read, None where it is left dense."""
        return {d.linear.name: d.scheme.read if d.scheme else None for d in self.dispositions}

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the unquantized linears."""
        return tuple(d.linear.name for d in self.dispositions if d.scheme is None)

    def resources(self) -> dict[str, float]:
        """The known resources of the run by their JSON keys; bytes and seconds.

        `work_bytes` is the run's own memory, `peak_rss_bytes` that of the whole process, and
        `evaluation_rss_bytes` that of the process while it evaluates.
        """
        memory, seconds = self.memory, self.time.seconds if self.time else None
        known: dict[str, float | None] = {
            "bytes": self.files.bytes if self.files else None,
            "work_bytes": memory.peak.bytes if memory else None,
            "base_rss_bytes": memory.base_bytes if memory else None,
            "peak_rss_bytes": memory.rss_bytes if memory else None,
            "evaluation_rss_bytes": self.evaluation.rss_bytes if self.evaluation else None,
            "least_seconds": seconds[0] if seconds else None,
            "most_seconds": seconds[1] if seconds else None,
        }
        return {key: value for key, value in known.items() if value is not None}

    def _repr_html_(self) -> str:
        if self.serving is None:
            rows = [
                (d.linear.name, d.scheme.label() if d.scheme else d.reason)
                for d in self.dispositions
            ]
            return html_table("plan", ("linear", "becomes"), rows)
        head = ("build", "bytes", "bytes on a GPU", "longest context", "fits")
        return html_table(self.serving.model.name, head, map(_cells, self.serving.builds))


def _cells(build: PlannedBuild) -> tuple[object, ...]:
    deployed = build.deployment
    if deployed is None:
        return build.name, build.bytes or None, None, None, build.fault or ""
    return build.name, build.bytes, deployed.total, deployed.longest, build.fits


def make_plan(recipe: Recipe, linears: Sequence[LinearFacts], checks: Iterable[Check]) -> Plan:
    """Decide the scheme of every linear, or report all reasons against the recipe at once.

    `checks` are the rules of the method, the format and the target engines.

    Raises:
        InputError: an override matches no linear.
        RefusedError: method, format or an engine does not support the recipe.
    """
    _every_pattern_matches(recipe.overrides, linears)
    specs = {linear.name: _spec(recipe, linear.name) for linear in linears}
    sizes = registry.load("grids", recipe.scheme.grid, "GRID").group_sizes
    automatic = _automatic_group_size([f for f in linears if _is_automatic(specs[f.name])], sizes)
    dispositions = []
    for linear in linears:
        spec = specs[linear.name]
        scheme = spec.resolve(automatic) if spec else None
        dispositions.append(Disposition(linear, scheme, "" if scheme else LEFT_OUT))
    _refuse(dispositions, tuple(checks))
    remarks = []
    if any(_is_automatic(spec) for spec in specs.values()):
        label = "one per channel" if automatic is None else str(automatic)
        remarks.append(f"group size {label}: the largest that divides every quantized width")
    return Plan(recipe, tuple(dispositions), tuple(remarks))


def _spec(recipe: Recipe, name: str) -> SchemeSpec | None:
    """The scheme that the recipe states for `name`, None where it skips it; later overrides win."""
    spec: SchemeSpec | None = recipe.scheme
    for override in recipe.overrides:
        if override.covers(name):
            spec = None if override.skip else override.apply(spec or recipe.scheme)
    return spec


def _is_automatic(spec: SchemeSpec | None) -> bool:
    return spec is not None and spec.group_size == "auto"


def _automatic_group_size(linears: Sequence[LinearFacts], sizes: Sequence[int]) -> int | None:
    widths = {linear.in_features for linear in linears}
    return next((g for g in sizes if all(w % g == 0 for w in widths)), None)


def _every_pattern_matches(overrides: Iterable[Override], linears: Sequence[LinearFacts]) -> None:
    for override in overrides:
        if not any(override.covers(linear.name) for linear in linears):
            example = linears[0].name if linears else "none"
            raise InputError(
                f"override `{override.match}` matches no linear of this model",
                why=f"names look like `{example}`",
                hint=f"`*.{example.rsplit('.', 1)[-1]}`",
            )


def _refuse(dispositions: Sequence[Disposition], checks: tuple[Check, ...]) -> None:
    faults: dict[str, list[str]] = {}
    quantized = [(each.scheme, each.linear) for each in dispositions if each.scheme is not None]
    legal = _legal_group_size(quantized)
    for scheme, linear in quantized:
        if misfit := _group_fault(scheme, linear, legal):  # a format would only repeat it
            faults.setdefault(misfit, []).append(linear.name)
            continue
        for fault in filter(None, (check(scheme, linear) for check in checks)):
            faults.setdefault(fault, []).append(linear.name)
    by_name = {each.linear.name: each for each in dispositions}
    for each in dispositions:
        if any(by_name[other].scheme != each.scheme for other in each.linear.fused):
            fault = "linears that read the same input must share one scheme (engines fuse them)"
            faults.setdefault(fault, []).append(each.linear.name)
    if faults:
        (what, _, hint), *more = (fault.partition("; try: ") for fault in faults)
        where, *places = (_named(names) for names in faults.values())
        also = [f"\nalso: {m[0]}, in {place}" for m, place in zip(more, places, strict=True)]
        leave_out = "leave them out with an override `skip: true`"
        raise RefusedError(what, why=f"in {where}" + "".join(also), hint=hint or leave_out)


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _group_fault(scheme: Scheme, linear: LinearFacts, legal: str) -> str | None:
    if scheme.storage.flattened or scheme.rows != 1:  # blocks of the flattened weight, or cut ones
        return None
    if not scheme.group_size or linear.in_features % scheme.group_size == 0:
        return None
    if scheme.kind.group_sizes == (scheme.group_size,):  # the only one
        return (
            f"{scheme.label()} has groups of {scheme.group_size} inputs, which do not divide "
            f"{linear.in_features}; try: leave them out"
        )
    fault = f"group size {scheme.group_size} does not divide {linear.in_features} inputs"
    return f"{fault}; try: --group-size {legal}"


def _legal_group_size(quantized: Sequence[tuple[Scheme, LinearFacts]]) -> str:
    """The largest group size that divides every width, else `channel`."""
    sizes = quantized[0][0].kind.group_sizes if quantized else ()
    size = _automatic_group_size([linear for _, linear in quantized], sizes)
    return "channel" if size is None else str(size)
