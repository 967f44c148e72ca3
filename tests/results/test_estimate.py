import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.results.estimate import strata, stratified_mean, t_quantile


def test_documents_of_one_size_reduce_to_the_textbook_error() -> None:
    means = np.random.default_rng(1).normal(size=10)
    found = stratified_mean(means * 7, np.full(10, 7), ["a"] * 10)
    assert found.value == pytest.approx(means.mean())
    assert found.standard_error == pytest.approx(means.std(ddof=1) / math.sqrt(10))
    reach = 2.2622 * found.standard_error
    assert found.interval == pytest.approx((found.value - reach, found.value + reach), rel=1e-4)


def test_what_differs_between_domains_is_no_error() -> None:
    means = np.array([1.0, 1.1, 0.9, 5.0, 5.2, 4.8])
    found = stratified_mean(means, np.ones(6), list("aaabbb"))
    by_hand = math.sqrt(0.25 * 0.01 / 3 + 0.25 * 0.04 / 3)
    assert found.standard_error == pytest.approx(by_hand)
    assert found.degrees_of_freedom == 4
    assert stratified_mean(means, np.ones(6), ["a"] * 6).standard_error > 10 * by_hand


def test_one_document_has_no_error() -> None:
    found = stratified_mean([3.0], [2], ["a"])
    assert found.value == 1.5
    assert math.isnan(found.standard_error)
    assert math.isnan(found.interval[0])


@pytest.mark.parametrize(
    ("domains", "expected"),
    [("aab", [[0, 1, 2]]), ("abc", [[0, 1, 2]]), ("aabbbc", [[0, 1, 5], [2, 3, 4]]), ("a", [[0]])],
)
def test_domains_of_one_document_are_joined(domains: str, expected: list[list[int]]) -> None:
    assert strata(list(domains)) == expected


@given(st.permutations(range(12)))
def test_order_of_documents_changes_nothing(order: list[int]) -> None:
    generator = np.random.default_rng(2)
    sums, counts = generator.normal(size=12), generator.integers(1, 9, size=12).astype(float)
    domains = [f"{i % 3}" for i in range(12)]
    plain = stratified_mean(sums, counts, domains)
    moved = stratified_mean(sums[order], counts[order], [domains[i] for i in order])
    assert moved.value == pytest.approx(plain.value, rel=1e-12)
    assert moved.standard_error == pytest.approx(plain.standard_error, rel=1e-9)


@pytest.mark.parametrize(
    ("level", "free", "table"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 10, 2.22814), (0.995, 30, 2.74999),
     (0.975, 500, 1.96472)],
)  # fmt: skip
def test_student_s_t_is_that_of_the_tables(level: float, free: int, table: float) -> None:
    assert t_quantile(level, free) == pytest.approx(table, rel=5e-6)


def coverage(sizes: tuple[int, ...], domains: list[str]) -> float:
    """Share of simulated texts whose interval holds the truth, 0: half of the spread is topic."""
    generator = np.random.default_rng(3)
    trials, hits = 1000, 0
    counts = np.array(sizes)
    for _ in range(trials):
        means = generator.normal(size=len(sizes)) + generator.normal(size=len(sizes)) / np.sqrt(
            counts
        )
        low, high = stratified_mean(means * counts, counts, domains).interval
        hits += low < 0 < high
    return hits / trials


@pytest.mark.parametrize("sizes", [(1,) * 10, (4,) * 40, (1, 2, 3, 4) * 12])
def test_intervals_cover_when_documents_were_drawn(sizes: tuple[int, ...]) -> None:
    domains = [f"{i % 4}" for i in range(len(sizes))]
    assert 0.93 < coverage(sizes, domains) < 0.97
