import math
import random

import pytest

from quantkit.eval.stratified import document_mean, t95


@pytest.mark.parametrize(
    ("freedom", "exact"),
    [(1, 12.706), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (500, 1.965)],
)
def test_student_s_t_is_that_of_the_tables(freedom: int, exact: float) -> None:
    assert t95(freedom) == pytest.approx(exact, rel=0.01)


def test_one_document_alone_shows_no_spread() -> None:
    assert document_mean([3.0], [2], ["a"]) == (1.5, math.inf)


def test_intervals_cover_as_often_as_they_say() -> None:
    generator = random.Random(0)
    centres = {"prose": 0.01, "code": 0.05, "chat": 0.02}
    domains = [domain for domain in centres for _ in range(8)]
    truth = sum(centres.values()) / 3
    covered = 0
    for _ in range(2000):
        sums = [100 * generator.gauss(centres[domain], 0.01) for domain in domains]
        mean, half = document_mean(sums, [100] * len(sums), domains)
        covered += abs(mean - truth) <= half
    assert 0.94 <= covered / 2000 <= 0.96
