"""The knapsack against all choices there are, and its promises on instances of real size."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.core.errors import RefusedError
from quantkit.runs.fit.allocate import Allocation, Option, allocate, frontier

OPTION = st.builds(Option, st.integers(1, 60), st.floats(0, 10, width=32))
ITEMS = st.lists(st.lists(OPTION, min_size=1, max_size=4), min_size=1, max_size=5)
CLOSE = 2e-5
"""HiGHS stops within 1e-6 of the cost that costs are scaled by."""


def least(items: list[list[Option]], budget: int) -> float:
    """The least cost of all choices that fit."""
    costs = [
        sum(option.cost for option in choice)
        for choice in product(*items)
        if sum(option.bytes for option in choice) <= budget
    ]
    return min(costs)


def smallest(items: list[list[Option]]) -> int:
    return sum(min(option.bytes for option in options) for options in items)


def holds(found: Allocation, items: list[list[Option]], budget: int) -> bool:
    """Whether an allocation is what it says, and fits."""
    taken = [options[j] for options, j in zip(items, found.choice, strict=True)]
    same = found.bytes == sum(o.bytes for o in taken) and found.cost == sum(o.cost for o in taken)
    return same and found.bytes <= budget and found.bound <= found.cost


@settings(max_examples=60)
@given(ITEMS, st.integers(0, 200))
def test_equals_the_best_of_all_choices(items: list[list[Option]], spare: int) -> None:
    budget = smallest(items) + spare
    found, best = allocate(items, budget), least(items, budget)
    top = sum(max(option.cost for option in options) for options in items)
    assert holds(found, items, budget)
    assert found.bound <= best + CLOSE * top
    assert best <= found.cost <= best + CLOSE * top


@settings(max_examples=30)
@given(ITEMS, st.integers(0, 100), st.integers(0, 100))
def test_more_bytes_never_cost_more(items: list[list[Option]], spare: int, more: int) -> None:
    budget = smallest(items) + spare
    top = sum(max(option.cost for option in options) for options in items)
    larger = allocate(items, budget + more).cost
    assert larger <= allocate(items, budget).cost + CLOSE * top


@given(ITEMS)
def test_no_choice_is_below_the_frontier(items: list[list[Option]]) -> None:
    points = list(frontier(items))
    assert [p.bytes for p in points] == sorted({p.bytes for p in points})
    for point in points:
        assert point.cost == pytest.approx(least(items, point.bytes), abs=1e-9)


@given(ITEMS)
def test_refuses_what_nothing_fits(items: list[list[Option]]) -> None:
    with pytest.raises(RefusedError, match="do not fit"):
        allocate(items, smallest(items) - 1)


def test_never_over_the_budget_by_the_solvers_tolerance() -> None:
    # a byte too much is 1e-9 of the budget, far under HiGHS' 1e-6
    items = [[Option(10**9, 1.0), Option(2 * 10**9, 0.5), Option(3 * 10**9 + 1, 0.0)]] * 3
    found = allocate(items, 6 * 10**9)
    assert found.bytes <= 6 * 10**9
    assert found.cost == 1.5
    assert found.bound <= 1.5


def test_proves_a_small_gap_on_a_model_of_real_size() -> None:
    # 320 groups x 8 options, about a 70B model
    widths = [8192 * 10240, 8192 * 8192, 8192 * 57344, 28672 * 8192]
    bits = [(4, 16 / 128), (4, 16 / 64), (4, 16 / 32), (8, 16 / 128), (8, 16 / 32), (16, 0)]
    items = [
        [
            Option(int(width * (b + extra)) // 8, (1 + 37 * k % 101) * width * 4.0 ** -(b + extra))
            for b, extra in bits
        ]
        for k, width in enumerate(widths * 80)
    ]
    low, high = smallest(items), sum(max(o.bytes for o in options) for options in items)
    budget = low + (high - low) // 3
    found = allocate(items, budget)
    assert holds(found, items, budget)
    assert found.gap < 1e-4
    assert found.bytes > 0.999 * budget
