import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.core.errors import InputError
from quantkit.results.answers import (
    Answers,
    Flips,
    accuracy_beside,
    compare_answers,
    count_flips,
    losses,
    mcnemar,
)
from quantkit.results.gates import judge
from quantkit.results.schema import EvalResult, Perplexity, Protocol, Subject, TaskResult

COUNT = st.integers(0, 40)


def answers(right: list[bool], task: str = "t", questions: str = "q") -> Answers:
    return Answers(task, "acc", questions, tuple(right))


def compared(right_to_wrong: int, wrong_to_right: int, total: int, known: int) -> TaskResult:
    """A task of `total` questions of which the reference answers `known` rightly."""
    before = [True] * known + [False] * (total - known)
    after = list(before)
    for i in range(right_to_wrong):
        after[i] = False
    for i in range(wrong_to_right):
        after[known + i] = True
    return compare_answers(answers(after), answers(before))


@given(COUNT, COUNT)
def test_mcnemar_is_the_binomial_test_of_the_flips(b: int, c: int) -> None:
    n = b + c
    likelihood = [math.comb(n, i) / 2**n for i in range(n + 1)]
    exact = sum(p for p in likelihood if p <= likelihood[b] * (1 + 1e-9))
    assert mcnemar(Flips(b, c, 100)) == pytest.approx(min(1.0, exact))


def test_mcnemar_of_figures_known_from_elsewhere() -> None:
    # R: binom.test(35, 60)$p.value
    assert mcnemar(Flips(35, 25, 1319)) == pytest.approx(0.245, abs=5e-4)
    assert mcnemar(Flips(0, 0, 10)) == 1
    assert mcnemar(Flips(600, 400, 14042)) < 1e-9


@pytest.mark.parametrize(
    ("questions", "flips", "points"), [(14042, 0.05, 0.5), (1319, 0.05, 1.7), (164, 0.06, 5.4)]
)
def test_the_smallest_loss_that_a_known_task_could_show(
    questions: int, flips: float, points: float
) -> None:
    half = round(questions * flips / 2)
    found = compared(half, half, questions, questions * 3 // 4)
    assert 100 * found.detectable_fraction == pytest.approx(points, abs=0.06)


def test_recovery_flips_and_their_errors() -> None:
    found = compared(35, 25, 1319, 1150)
    assert (found.right_to_wrong, found.wrong_to_right) == (35, 25)
    assert found.recovery == pytest.approx(1140 / 1150)
    assert found.recovery_ci95 is not None
    low, high = found.recovery_ci95
    error = math.sqrt(60 - 100 / 1319) / 1319 / (1150 / 1319)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=1e-4)
    assert found.answers.count("1") == 1140
    assert found.reference_answers.count("1") == 1150


def test_no_flip_seen_is_not_none_possible() -> None:
    found = compared(0, 0, 100, 80)
    assert found.recovery == 1
    assert found.recovery_ci95 is not None
    assert found.recovery_ci95[0] < 1 < found.recovery_ci95[1]
    assert found.detectable_fraction == pytest.approx(0.028)


def test_the_interval_covers_as_often_as_it_says() -> None:
    generator = random.Random(1)
    covered, runs, questions = 0, 1500, 400
    for _ in range(runs):
        before = [generator.random() < 0.7 for _ in range(questions)]
        after = [right if generator.random() > 0.06 else not right for right in before]
        expected = (0.7 * 0.94 + 0.3 * 0.06) / 0.7
        found = compare_answers(answers(after), answers(before))
        assert found.recovery_ci95 is not None
        covered += found.recovery_ci95[0] <= expected <= found.recovery_ci95[1]
    assert 0.93 <= covered / runs <= 0.97


def test_the_level_is_shared_over_the_tasks() -> None:
    worse, same = compared(30, 14, 500, 400), compared(20, 20, 500, 400)
    assert 0.01 < worse.mcnemar_p < 0.05
    assert losses([worse]) == ("t",)
    assert losses([worse, same, same, same, same]) == ()
    assert losses([compared(14, 30, 500, 400)]) == ()


@pytest.mark.parametrize(
    ("model", "reference", "told"),
    [
        (answers([True]), answers([True], questions="other"), "different questions"),
        (answers([True]), answers([False]), "answers no question"),
    ],
)
def test_answers_that_cannot_be_compared_say_why(
    model: Answers, reference: Answers, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        compare_answers(model, reference)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1))
def test_flips_account_for_the_whole_difference(pairs: list[tuple[bool, bool]]) -> None:
    before, after = zip(*pairs, strict=True)
    flips = count_flips(before, after)
    assert sum(before) - sum(after) == flips.right_to_wrong - flips.wrong_to_right
    assert flips.standard_error() <= 1


def test_answers_are_paired_with_those_of_the_baseline() -> None:
    def result(task: TaskResult) -> EvalResult:
        protocol = Protocol(name="p", text="t", tokens_sha256="s", windows=1, sequence_length=2)
        return EvalResult(
            artifact=Subject(name="a"),
            protocol=protocol,
            tokens=1,
            perplexity=Perplexity(value=None),
            tasks=[task],
        )

    old, worse = compared(0, 0, 1000, 800), compared(60, 10, 1000, 800)
    assert accuracy_beside(old, old) == (0.8, 0.8)
    (same,) = judge((), result(old), result(old))
    assert same.status == "passed"
    (fell,) = judge((), result(worse), result(old))
    assert (fell.expression, fell.status) == ("tasks.t.accuracy >= baseline", "failed")
    (other,) = judge(
        (), result(worse.model_copy(update={"questions_sha256": "other"})), result(old)
    )
    assert (other.status, other.why) == ("undecided", "the questions differ")
