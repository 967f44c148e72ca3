"""One option per item at the least total cost within a budget of bytes, with a proven bound.

This is the multiple-choice knapsack problem (Kellerer, Pferschy and Pisinger, Knapsack Problems,
2004, chapter 11). Its linear relaxation is solved by sorting, the integer problem by HiGHS, a
branch-and-bound solver.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from quantkit.core.errors import RefusedError

NODES = 2000
"""Limit on nodes of the search tree; then the best solution and its bound are used. A limit in
seconds would give other solutions on a busy machine."""
EDGE = 2e-6
"""Twice the solver's tolerance of a constraint, as a fraction of the free bytes."""


@dataclass(frozen=True)
class Option:
    """An option of an item: its bytes, and its cost in any additive unit."""

    bytes: int
    cost: float


@dataclass(frozen=True)
class Allocation:
    """The index of each item's option, total bytes and cost, and a lower `bound` of the cost."""

    choice: tuple[int, ...]
    bytes: int
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """Largest possible distance from the optimal cost, as a fraction of this cost."""
        return max(0.0, self.cost - self.bound) / self.cost if self.cost > 0 else 0.0


Items = Sequence[Sequence[Option]]


def allocate(items: Items, budget: int, nodes: int = NODES) -> Allocation:
    """The cheapest choice of one option per item whose bytes are at most `budget`.

    An option that costs as much as a smaller one of its item is never chosen: a larger cost at
    more bytes is measurement noise.

    Raises:
        RefusedError: the smallest options exceed the budget.
    """
    ladder = _ladder(items)
    smallest, *climbs = ladder
    if smallest.bytes > budget:
        raise RefusedError(
            f"the weights do not fit {budget:,} bytes",
            why=f"the smallest choice needs {smallest.bytes:,}",
            hint=f"a budget of {smallest.bytes:,} bytes or more, or fewer bits",
        )
    under = [smallest, *(step for step in climbs if step.bytes <= budget)][-1]
    bound = _relaxed(ladder, budget)
    best, limit = under, budget
    while limit >= smallest.bytes:
        found, proven = _solve(items, limit, under.cost or 1.0, nodes)
        if limit == budget:
            bound = max(bound, proven)
        if found is None:
            break
        taken = _allocation(items, found, bound)
        if taken.bytes <= budget:
            best = min(best, taken, key=lambda allocation: allocation.cost)
            break
        # the solver's tolerance exceeded the budget: solve again with a little less
        limit -= max(taken.bytes - budget, int(EDGE * (budget - smallest.bytes)) + 1)
    return Allocation(best.choice, best.bytes, best.cost, min(bound, best.cost))


def frontier(items: Items) -> Iterator[Allocation]:
    """Choices of growing bytes and falling cost, each the cheapest for its bytes.

    They are the vertices of the relaxed problem at which its solution is integral.
    """
    for step in _ladder(items):
        yield Allocation(step.choice, step.bytes, step.cost, step.cost)


def _ladder(items: Items) -> list[Allocation]:
    """Choices from the smallest one up, by falling gain per byte."""
    hulls = [_hull(options) for options in items]
    choice = [hull[0] for hull in hulls]
    steps = []
    for k, hull in enumerate(hulls):
        for low, high in pairwise(hull):
            a, b = items[k][low], items[k][high]
            steps.append(((a.cost - b.cost) / (b.bytes - a.bytes), k, high))
    steps.sort(key=lambda step: (-step[0], step[1], items[step[1]][step[2]].bytes))
    found = [_allocation(items, choice, 0.0)]
    for _, k, high in steps:
        choice[k] = high
        found.append(_allocation(items, choice, 0.0))
    return found


def _allocation(items: Items, choice: Sequence[int], bound: float) -> Allocation:
    taken = [options[j] for options, j in zip(items, choice, strict=True)]
    size, cost = sum(option.bytes for option in taken), sum(option.cost for option in taken)
    return Allocation(tuple(choice), size, cost, bound)


def _useful(options: Sequence[Option]) -> list[int]:
    """Indices by growing bytes of the options that cost less than every smaller one."""
    order = sorted(range(len(options)), key=lambda j: (options[j].bytes, options[j].cost, j))
    found: list[int] = []
    for j in order:
        if not found or options[j].cost < options[found[-1]].cost:
            found.append(j)
    return found


def _hull(options: Sequence[Option]) -> list[int]:
    """Indices on the lower convex hull of (bytes, cost): their gain per byte falls."""
    hull: list[int] = []
    for j in _useful(options):
        while len(hull) > 1 and _slope(options, hull[-2], hull[-1]) <= _slope(options, hull[-1], j):
            hull.pop()
        hull.append(j)
    return hull


def _slope(options: Sequence[Option], low: int, high: int) -> float:
    a, b = options[low], options[high]
    return (a.cost - b.cost) / (b.bytes - a.bytes)


def _relaxed(ladder: Sequence[Allocation], budget: int) -> float:
    """The optimal cost of the linear relaxation."""
    for low, high in pairwise(ladder):
        if high.bytes > budget:
            part = (budget - low.bytes) / (high.bytes - low.bytes)
            return low.cost + part * (high.cost - low.cost)
    return ladder[-1].cost


def _solve(items: Items, budget: int, scale: float, nodes: int) -> tuple[list[int] | None, float]:
    """The choice of HiGHS, None if it found none, and its proven bound.

    Costs are divided by `scale`; bytes are counted from the smallest choice and divided by the free
    bytes, because the solver's tolerances are absolute.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    useful = [_useful(options) for options in items]
    columns = [(k, j) for k, indices in enumerate(useful) for j in indices]
    base = sum(items[k][indices[0]].bytes for k, indices in enumerate(useful))
    room = max(1, budget - base)
    extra = [(items[k][j].bytes - items[k][useful[k][0]].bytes) / room for k, j in columns]
    places = list(range(len(columns)))
    one_each = csr_array(
        ([1.0] * len(columns), ([k for k, _ in columns], places)), (len(items), len(columns))
    )
    found = milp(
        [items[k][j].cost / scale for k, j in columns],
        integrality=[1] * len(columns),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint([extra], 0, (budget - base) / room),
        ],
        options={"node_limit": nodes, "mip_rel_gap": 0},
    )
    proven = found.mip_dual_bound
    bound = scale * float(proven) if proven is not None else 0.0
    if found.x is None:
        return None, bound
    choice = [0] * len(items)
    for (k, j), taken in zip(columns, found.x, strict=True):
        if taken > 0.5:
            choice[k] = j
    return choice, bound
