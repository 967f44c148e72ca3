"""Choose bits so that the weights fit a budget, and compare with the best uniform recipe."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from quantkit.calibration.chat import Tokenizer
from quantkit.calibration.tokens import Calibration
from quantkit.checkpoint.shards import DEFAULT_SHARD_SIZE
from quantkit.checkpoint.sizes import parse_size
from quantkit.core import registry
from quantkit.core.engine import Engine
from quantkit.core.errors import RefusedError
from quantkit.core.facts import Check, LinearFacts
from quantkit.core.plan import Plan
from quantkit.core.recipe import CalibrationSpec, Recipe, SchemeSpec
from quantkit.core.scheme import Scheme
from quantkit.core.session import Session
from quantkit.eval.compare import smoke_score, smoke_windows
from quantkit.eval.side_by_side import evaluate_models, read_reference
from quantkit.eval.text import EvaluationText
from quantkit.eval.windows import text_of_windows
from quantkit.model.opened import OpenModel
from quantkit.pipeline.calibrate import calibrate
from quantkit.pipeline.folder import ModelFolder
from quantkit.pipeline.memory import map_large_tensors
from quantkit.pipeline.prepare import Prepared
from quantkit.pipeline.start import start
from quantkit.planning.serve.legal import linear_check
from quantkit.planning.serve.room import Budget, RankSizes, Room
from quantkit.results.decision import finite
from quantkit.results.fit_result import Fit, FitPoint, Served
from quantkit.results.paired import paired_difference
from quantkit.results.schema import EvalResult
from quantkit.runs.ceiling import bounded, ceiling_of
from quantkit.runs.fit.allocate import allocate, frontier
from quantkit.runs.fit.builds import Kind, build_folder
from quantkit.runs.fit.effort import show_effort
from quantkit.runs.fit.memory import measuring_memory
from quantkit.runs.fit.problem import (
    MIXED,
    Chosen,
    FileSizes,
    Problem,
    Sizes,
    probe_of,
    require_suitable,
    spec_of,
    state_problem,
    with_costs,
)
from quantkit.runs.fit.schemes import METHOD
from quantkit.runs.forecast import (
    held_bytes,
    larger,
    machine_speed,
    plan_within,
    require_memory,
    what_fits,
)
from quantkit.runs.produce import Draft, Order, QuantizeResult, drafted, finish
from quantkit.runs.reading import plan_reading, waiting_room, with_evaluation

FORMATS = (MIXED, "gptq")
"""In order of preference; only the first supports several schemes."""

WINDOWS, LENGTH = 16, 513
FRONTIER_POINTS = 33


@dataclass(frozen=True)
class Wanted:
    """The inputs of a fit: model, budget in bytes, engine and schemes to choose from.

    `budget` is for the weight files, or with `room` for a rank's weights in memory. `command`: how
    it was asked for.
    """

    original: ModelFolder
    output: Path
    budget: int
    engine: str
    schemes: tuple[Scheme, ...]
    calibration: CalibrationSpec
    room: Room | None = None
    command: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _Candidate:
    """A choice within the budget, with its bytes and expected KL."""

    kind: Kind
    chosen: Chosen
    point: FitPoint


def want(
    original: ModelFolder,
    output: Path,
    budget: Budget,
    schemes: tuple[Scheme, ...],
    calibration: CalibrationSpec | None,
) -> Wanted:
    """The inputs of a fit for a model and a budget.

    Raises:
        InputError, RefusedError: as `Budget.room`.
    """
    room = budget.room(original.source.folder)
    return Wanted(
        original=original,
        output=output,
        budget=room.bytes if room else parse_size(budget.size or 0),
        engine=budget.engine,
        schemes=schemes,
        calibration=calibration or CalibrationSpec(),
        room=room,
    )


def pose(wanted: Wanted) -> Problem:
    """The problem: every possible choice with its bytes.

    Raises:
        RefusedError: no scheme suits the model, nothing fits, or the unquantized model fits.
    """
    model = wanted.original.model
    prepared = start_with(model, wanted.engine, wanted.schemes, wanted.calibration)
    sizes: Sizes = FileSizes(prepared)
    checks: list[Check] = []
    if wanted.room is not None:
        known = {linear: prepared.model.weights.modules[linear] for linear in prepared.plan.schemes}
        sizes = RankSizes(wanted.room, prepared.format, known)
        checks = [legal_there(wanted.room, prepared, known)]
    problem = state_problem(prepared, wanted.schemes, sizes, checks)
    require_suitable(problem, wanted.budget)
    return problem


def legal_there(room: Room, prepared: Prepared, names: Mapping[str, str]) -> Check:
    """The engine's rules for the room's GPU and ranks."""
    place = room.place
    engine: Engine = registry.load("engines", place.engine, "ENGINE")
    there = (place.degrees, place.gpu.capability)
    check = linear_check(engine, room.model, prepared.format, there)

    def fault(scheme: Scheme, linear: LinearFacts) -> str | None:
        if engine.multiplies(scheme, place.gpu.capability) != scheme.products:
            return f"{engine.summary} rounds the activations of {scheme.label()}, too"
        return check(scheme, replace(linear, name=names[linear.name]))

    return fault


def measure(
    wanted: Wanted, problem: Problem, session: Session = Session()
) -> tuple[Problem, Calibration]:
    """The problem with the measured KL of each option, and the calibration text that was used.

    Raises:
        RefusedError: the recipe has no calibration text.
    """
    calibration = calibrate(wanted.original, wanted.calibration)
    if calibration is None:
        raise RefusedError("fit needs calibration text", hint="--samples 128")
    map_large_tensors()
    prepared, windows = problem.prepared, tuple(calibration.input_ids.shape)
    device = prepared.model.device
    ceiling = ceiling_of(device, session)
    build = plan_within(ceiling, prepared, windows, DEFAULT_SHARD_SIZE, session.report)
    build = with_evaluation(build, ceiling, prepared, smoke_windows(prepared.model))
    remedy = partial(what_fits, build, ceiling, prepared, windows, DEFAULT_SHARD_SIZE)
    require_memory(build, ceiling, remedy)
    memory_of = partial(measuring_memory, problem, probe_of(calibration))
    measuring = plan_reading(memory_of, ceiling, Plan(), held_bytes(device))
    require_memory(measuring, ceiling, lambda: larger(measuring, ceiling))
    speed_of = partial(machine_speed, limited=ceiling.limit is not None)
    show_effort(problem, calibration, build, speed_of, session.report)
    room = waiting_room(measuring.evaluation, wanted.output.resolve().parent)
    with bounded(device, session):
        return with_costs(problem, calibration, session.report, room), calibration


def fit(wanted: Wanted, session: Session = Session()) -> QuantizeResult:
    """Make the best mixed and the best uniform build that fit, and publish the better one.

    Raises:
        InputError, RefusedError: before any work, as `pose` and `measure`.
    """
    problem, calibration = measure(wanted, pose(wanted), session)
    return settle(wanted, problem, calibration, session)


def settle(
    wanted: Wanted, problem: Problem, calibration: Calibration, session: Session = Session()
) -> QuantizeResult:
    """Build and compare the candidates of a measured problem, and publish one.

    `calibration` is the text that `problem` was measured on.
    """
    candidates, gap = candidates_of(problem, wanted.budget)
    with ExitStack() as stack:
        drafts = {}
        for candidate in candidates:
            order = _order(wanted, problem, candidate, calibration)
            draft = drafted(order, session.under(candidate.kind))
            drafts[candidate.kind] = stack.enter_context(draft)
        found = _measured(wanted, calibration, drafts, session)
        record = _record(wanted, problem, candidates, found, gap)
        final = smoke_score(wanted.original, calibration, session.report)
        return finish(
            drafts[record.shipped],
            lambda written: final(written).model_copy(update={"fit": record}),
            output=wanted.output,
        )


def start_with(
    model: OpenModel, engine: str, schemes: Sequence[Scheme], calibration: CalibrationSpec
) -> Prepared:
    """The model prepared with the first format and scheme that the engine loads.

    Raises:
        RefusedError: the engine loads none of them.
    """
    refused: RefusedError | None = None
    for output, scheme in product(FORMATS, schemes):
        recipe = Recipe(
            name="fit",
            method=METHOD,
            format=output,
            description="bits chosen so that the weights fit a budget",
            scheme=_anywhere(scheme),
            calibration=calibration,
            engines=(engine,),
        )
        try:
            return start(model, recipe)
        except RefusedError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _anywhere(scheme: Scheme) -> SchemeSpec:
    """The scheme, if it can by the channel: sizes of groups are judged linear by linear later."""
    spec = spec_of(scheme)
    whole = replace(spec, group_size="channel")
    return spec if whole.resolve(None).contradiction() else whole


def candidates_of(problem: Problem, budget: int) -> tuple[list[_Candidate], float]:
    """The best uniform and the best mixed build, if they exist, and the gap of the latter."""
    found = []
    fitting = [u for u in problem.uniforms() if problem.bytes(u) <= budget]
    if fitting:
        best = min(fitting, key=problem.kl)
        found.append(_candidate("uniform", problem, best))
    if problem.single or problem.smallest > budget:
        return found, 0.0
    room = budget - problem.fixed
    allocation = allocate(problem.items, room)
    while (over := problem.bytes(problem.chosen(allocation.choice)) - budget) > 0:
        room -= over  # the exact size of file headers depends on the choice
        allocation = allocate(problem.items, room)
    mixed = _candidate("mixed", problem, problem.chosen(allocation.choice))
    if not found or mixed.point.kl < found[0].point.kl:
        found.append(mixed)
    return found, allocation.gap


def _candidate(kind: Kind, problem: Problem, chosen: Chosen) -> _Candidate:
    schemes = {scheme.label() if scheme else "16 bit" for scheme in chosen}
    name = schemes.pop() if len(schemes) == 1 else ""
    point = FitPoint(bytes=problem.bytes(chosen), kl=problem.kl(chosen), name=name)
    return _Candidate(kind, chosen, point)


def _order(
    wanted: Wanted, problem: Problem, candidate: _Candidate, calibration: Calibration
) -> Order:
    """The order of one build, in a temporary folder next to the output."""
    return Order(
        wanted.original,
        problem.prepared_for(candidate.chosen, "fit"),
        calibration,
        build_folder(wanted.output, candidate.kind),
        DEFAULT_SHARD_SIZE,
        wanted.command,
        judged=True,
    )


def _measured(
    wanted: Wanted, calibration: Calibration, drafts: Mapping[Kind, Draft], session: Session
) -> dict[Kind, EvalResult]:
    """Compare each draft with the original on calibration text, not on the evaluation text."""
    text = choice_text(calibration, wanted.original.tokenizer)
    room = next(iter(drafts.values())).artifact.model.room
    original = replace(wanted.original.model, room=room)
    reference = read_reference(original, text, report=session.under("compare").report)
    found: dict[Kind, EvalResult] = {}
    for kind, draft in drafts.items():
        report = session.under(f"{kind}: compare").report
        found[kind] = evaluate_models(draft.artifact.model, text, reference, report=report)
    return found


def choice_text(calibration: Calibration, tokenizer: Tokenizer) -> EvaluationText:
    """Windows spread over the calibration text, on which the candidates are compared."""
    ids = calibration.input_ids
    count = min(WINDOWS, len(ids))
    places = [len(ids) * (2 * i + 1) // (2 * count) for i in range(count)]
    sources = [f"document {calibration.documents[place]}" for place in places]
    if 2 * len(set(sources)) < count:  # few long documents: treat windows as documents
        sources = [f"window {place}" for place in places]
    return text_of_windows(ids[torch.tensor(places), :LENGTH], sources, tokenizer, "calibration")


def _record(
    wanted: Wanted,
    problem: Problem,
    candidates: Sequence[_Candidate],
    found: Mapping[Kind, EvalResult],
    gap: float,
) -> Fit:
    """The choice and its reason; the mixed build is chosen only if it is significantly better."""
    points = {
        c.kind: c.point.model_copy(update={"measured_kl": _mean(found[c.kind])}) for c in candidates
    }
    kinds, compared = list(points), None
    shipped: Kind = kinds[0]
    why = "no uniform recipe fits"
    if shipped == "uniform":
        why = "no mixed build has a lower expected KL"
    if len(kinds) == 2:
        compared = paired_difference(found["mixed"], found["uniform"], "kl")
        better = compared.real and compared.difference < 0
        shipped = "mixed" if better else "uniform"
        why = "its measured KL is significantly lower"
        why = why if better else "the mixed build is not significantly better"
    chosen = next(c.chosen for c in candidates if c.kind == shipped)
    return Fit(
        budget_bytes=wanted.budget,
        bytes=points[shipped].bytes,
        active_bytes=problem.active_bytes(chosen),
        engine=wanted.engine,
        served=_served(wanted.room) if wanted.room else None,
        shipped=shipped,
        why=why,
        gap=gap,
        windows=found[shipped].protocol.windows,
        mixed=points.get("mixed"),
        uniform=points.get("uniform"),
        difference=compared.difference if compared else None,
        difference_ci95=finite(compared.ci95) if compared else None,
        frontier=_frontier(problem),
        uniforms=[_candidate("uniform", problem, u).point for u in problem.uniforms()],
    )


def _served(room: Room) -> Served:
    """The serving setup that the budget was computed from."""
    found = room.deployment
    return Served(
        gpu=room.place.gpu.name,
        tensor_parallel=room.place.degrees.tensor,
        context=found.load.context,
        batch=found.load.sequences,
        memory_bytes=found.budget.bytes,
        cache_bytes=found.cache.bytes,
        other_bytes=found.other,
    )


def _mean(found: EvalResult) -> float | None:
    return found.kl.mean if found.kl else None


def _frontier(problem: Problem) -> list[FitPoint]:
    """Bytes and expected KL of at most FRONTIER_POINTS evenly spaced best choices."""
    if problem.single:
        return []
    corners = list(frontier(problem.items))
    last = len(corners) - 1
    kept = sorted({round(last * i / (FRONTIER_POINTS - 1)) for i in range(FRONTIER_POINTS)})
    return [FitPoint(bytes=problem.fixed + corners[i].bytes, kl=corners[i].cost) for i in kept]
