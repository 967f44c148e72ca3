from hypothesis import given
from hypothesis import strategies as st

from quantkit.core.ranks import ALONE, Ranks


@given(st.integers(1, 9), st.integers(0, 40))
def test_each_item_is_in_one_slice_and_slices_differ_by_one(count: int, total: int) -> None:
    slices = [Ranks(rank, count).slice_of(total) for rank in range(count)]
    assert [i for each in slices for i in range(total)[each]] == list(range(total))
    lengths = [len(range(total)[each]) for each in slices]
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(1, 5), st.lists(st.integers(1, 100), min_size=1, max_size=30))
def test_loads_differ_by_one_item_at_most(count: int, costs: list[int]) -> None:
    owners = Ranks(0, count).owners(costs)
    assert owners == Ranks(count - 1, count).owners(costs)
    loads = [sum(c for c, o in zip(costs, owners, strict=True) if o == r) for r in range(count)]
    assert max(loads) - min(loads) <= max(costs)


def test_alone_everything_is_its_own() -> None:
    assert ALONE.owners([3, 1, 2]) == [0, 0, 0]
    assert range(7)[ALONE.slice_of(7)] == range(7)
    assert ALONE.leads
