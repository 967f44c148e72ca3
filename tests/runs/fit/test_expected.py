"""Costs of options from the few that are measured, and what more options are worth."""

from collections.abc import Callable
from math import log
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.checkpoint.source import resolve
from quantkit.core.recipe import CalibrationSpec
from quantkit.core.scheme import Scheme
from quantkit.pipeline.calibrate import calibrate
from quantkit.pipeline.choices import Choice
from quantkit.pipeline.opening import open_folder
from quantkit.pipeline.prepare import parts_of
from quantkit.pipeline.sensitivity import measure_effects
from quantkit.runs.fit.allocate import Option, allocate
from quantkit.runs.fit.choose import start_with
from quantkit.runs.fit.expected import Measured, Solved, costs, to_solve
from quantkit.runs.fit.problem import FileSizes, probe_of, state_problem
from quantkit.runs.fit.schemes import BITS, schemes_of

WIDE = (*schemes_of(grids=("int", "fp8", "mxfp8", "mxfp4", "nvfp4")), None)
DENSE = 65536


def choice(*schemes: Scheme | None) -> Choice:
    return Choice(0, (), (), schemes)


def law(scheme: Scheme | None) -> float:
    """A loss of the usual form: a quarter for each bit, less for smaller groups."""
    size = (scheme.group_size or 1024) if scheme else 0
    return 4.0**-scheme.bits * (1 + size / 1024) if scheme else 0.0


def effects(solved: Solved, sensitivity: float = 2.0) -> list[Measured]:
    return [
        (law(s), sensitivity * law(s) if j in solved.probed else None)
        for j, s in enumerate(solved.choice.schemes)
    ]


def test_few_widths_are_solved_and_two_are_probed() -> None:
    solved = to_solve(choice(*WIDE))
    kept = {s.bits for s in solved.choice.schemes if s and s.grid == "int"}
    assert kept == {2, 4, 8}
    assert {s.grid for s in solved.choice.schemes if s} == {s.grid for s in WIDE if s}
    probed = [solved.choice.schemes[j] for j in solved.probed]
    assert probed == [Scheme("int", 2, None), Scheme("int", 4, None)]


@settings(max_examples=40)
@given(st.sets(st.sampled_from(BITS), min_size=1), st.sampled_from([(32,), (None, 64)]))
def test_what_follows_the_law_is_found_exactly(
    bits: set[int], sizes: tuple[int | None, ...]
) -> None:
    schemes = (*schemes_of(sorted(bits), sizes, ("int",)), None)
    solved = to_solve(choice(*schemes))
    assert len(solved.probed) == 1 + (min(bits) < 4 <= max(bits))
    found = costs(schemes, solved, effects(solved))
    assert found == pytest.approx([2 * law(s) for s in schemes])


def test_kl_that_grows_faster_than_the_loss_is_followed_between_two_probes() -> None:
    schemes = (*schemes_of(group_sizes=(None,), grids=("int",)), None)
    solved = to_solve(choice(*schemes))
    steep = [(loss, loss**1.5 if kl else None) for loss, kl in effects(solved)]
    found = dict(zip(schemes, costs(schemes, solved, steep), strict=True))
    three, four, six = (Scheme("int", b, None) for b in (3, 4, 6))
    assert found[three] == pytest.approx(law(three) ** 1.5)
    assert found[six] == pytest.approx(law(four) ** 0.5 * law(six))  # in proportion


def test_a_group_that_loses_nothing_costs_nothing() -> None:
    solved = to_solve(choice(*WIDE))
    assert not any(costs(WIDE, solved, [(0.0, 0.0)] * len(solved.choice.schemes)))


def size(scheme: Scheme | None) -> int:
    return 4096 * scheme.bits + 131072 // (scheme.group_size or 4096) if scheme else DENSE


SENSITIVITIES = st.lists(st.floats(0.01, 10), min_size=1, max_size=6)


@settings(max_examples=40)
@given(SENSITIVITIES, st.floats(0, 1), st.sets(st.sampled_from(BITS), min_size=1))
def test_more_choices_never_raise_the_expected_kl(
    sensitivities: list[float], share: float, bits: set[int]
) -> None:
    """At equal budgets, from equal figures."""
    solved = to_solve(choice(*WIDE))
    measured = (costs(WIDE, solved, effects(solved, k)) for k in sensitivities)
    rows = [dict(zip(WIDE, found, strict=True)) for found in measured]

    def items(schemes: tuple[Scheme | None, ...]) -> list[list[Option]]:
        return [[Option(size(s), row[s]) for s in schemes] for row in rows]

    narrow = items((*schemes_of(sorted(bits), grids=("int",)), None))
    low = sum(min(option.bytes for option in row) for row in narrow)
    budget = low + int(share * (DENSE * len(rows) - low))
    few, many = allocate(narrow, budget), allocate(items(WIDE), budget)
    assert many.bytes <= budget
    assert many.cost <= few.cost + 2e-5 * sum(max(row.values()) for row in rows)


@pytest.mark.long
def test_losses_between_solved_widths_are_those_of_solving(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    """On random weights; on the trained embedded model the largest difference is 10 %."""
    spec = CalibrationSpec(samples=8, sequence_length=128)
    original = open_folder(resolve(str(tiny_checkpoint())))
    schemes = schemes_of(group_sizes=(32, None), grids=("int",))
    prepared = start_with(original.model, "vllm", schemes, spec)
    problem = state_problem(prepared, schemes, FileSizes(prepared))
    calibration = calibrate(original, spec)
    assert calibration is not None
    method, _, _, options = parts_of(prepared.plan.recipe)
    found = measure_effects(
        prepared.model, problem.choices, method, options, probe_of(calibration), lambda _: ()
    )
    for each, row in zip(problem.choices, found, strict=True):
        losses = dict(zip(each.schemes, (e.loss for e in row), strict=True))
        solved = to_solve(each)
        known = [(losses[s], losses[s] or None) for s in solved.choice.schemes]
        for scheme, cost in zip(each.schemes, costs(each.schemes, solved, known), strict=True):
            if scheme:
                assert abs(log(cost / losses[scheme])) < 0.15, scheme
