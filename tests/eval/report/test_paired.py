import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.eval.report.paired import paired_difference, student
from quantkit.eval.results import Documents

# two-sided 95 % points of Student's t, from printed tables
TABLE = {1: 12.706, 2: 4.303, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980}


def documents(kl: list[float], n: list[int], domains: list[str]) -> Documents:
    sums = [k * count for k, count in zip(kl, n, strict=True)]
    return Documents(domain=domains, n=n, sum_kl_nats=sums)


@pytest.mark.parametrize(("freedom", "value"), TABLE.items())
def test_quantiles_are_those_of_the_tables(freedom: int, value: float) -> None:
    assert student(freedom) == pytest.approx(value, rel=2e-3)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(1, 600)), min_size=2),
    st.floats(-1, 1),
)
def test_a_shift_of_every_document_shifts_the_difference_and_leaves_its_error(
    rows: list[tuple[float, float, int]], shift: float
) -> None:
    n = [count for _, _, count in rows]
    domains = ["a", "b"] * len(rows)
    one = documents([x for x, _, _ in rows], n, domains[: len(rows)])
    other = documents([y for _, y, _ in rows], n, domains[: len(rows)])
    moved = documents([x + shift for x, _, _ in rows], n, domains[: len(rows)])
    before, after = paired_difference(one, other), paired_difference(moved, other)
    assert after.mean - before.mean == pytest.approx(shift, abs=1e-9)
    assert after.half_width == pytest.approx(before.half_width, abs=1e-7)
    assert paired_difference(other, one).mean == pytest.approx(-before.mean, abs=1e-12)


def test_the_interval_holds_the_true_difference_as_often_as_it_says() -> None:
    """2,000 draws of 40 documents in 4 strata: 95 +- 1 %, two standard errors of the count."""
    draw = random.Random(7)
    held = 0
    for _ in range(2000):
        hard = [draw.lognormvariate(0, 0.6) for _ in range(40)]
        gap = [0.1 * (i % 4) + draw.gauss(0, 0.05) for i in range(40)]
        domains = [str(i % 4) for i in range(40)]
        one = documents([h + g for h, g in zip(hard, gap, strict=True)], [512] * 40, domains)
        found = paired_difference(one, documents(hard, [512] * 40, domains))
        held += abs(found.mean - 0.15) <= found.half_width
    assert 0.94 <= held / 2000 <= 0.96


def test_pairing_sees_what_two_errors_side_by_side_would_hide(generated: object) -> None:
    """Builds 7 % apart, whose documents share their difficulty: the paired interval excludes 0."""
    one = generated.eval_result(1, mean=0.024)  # type: ignore[attr-defined]
    other = generated.eval_result(2, mean=0.026)  # type: ignore[attr-defined]
    found = paired_difference(one.documents, other.documents)
    assert found.mean < -found.half_width
    spread = [k / 512 for k in one.documents.sum_kl_nats]
    mean = sum(spread) / len(spread)
    alone = 1.96 * (sum((x - mean) ** 2 for x in spread) / len(spread) ** 2) ** 0.5
    assert found.half_width < alone / 2


def test_single_documents_of_several_domains_make_one_stratum() -> None:
    found = paired_difference(
        documents([0.3, 0.1, 0.2], [100] * 3, ["a", "b", "c"]),
        documents([0.1, 0.1, 0.1], [100] * 3, ["a", "b", "c"]),
    )
    assert found.mean == pytest.approx(0.1)
    assert found.half_width == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)
