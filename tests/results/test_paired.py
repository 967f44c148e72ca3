from typing import Any

import numpy as np
import pytest

from quantkit.core.errors import InputError
from quantkit.results.paired import distinguishable, paired_difference, paired_differences
from quantkit.results.schema import (
    Divergence,
    Documents,
    EvalResult,
    Perplexity,
    Protocol,
    Subject,
)

DOCUMENTS, TOKENS = 48, 64


def result(kl: np.ndarray, floor: float = 0.0, **protocol: Any) -> EvalResult:
    """A result whose documents have these mean KLs."""
    fields: dict[str, Any] = {
        "name": "qk@1",
        "text": "made",
        "tokens_sha256": "t",
        "windows": len(kl),
    }
    return EvalResult(
        artifact=Subject(name="made"),
        protocol=Protocol(**fields | {"sequence_length": TOKENS} | protocol),
        tokens=len(kl) * TOKENS,
        perplexity=Perplexity(value=1.0),
        kl=Divergence(mean=float(kl.mean()), floor_mean=floor),
        documents=Documents(
            id=[str(i) for i in range(len(kl))],
            domain=[f"{i % 4}" for i in range(len(kl))],
            n=[TOKENS] * len(kl),
            sum_nll=(3 * TOKENS + 0 * kl).tolist(),
            sum_kl_nats=(TOKENS * kl).tolist(),
        ),
    )


def builds(generator: np.random.Generator, gap: float = 0.0) -> tuple[EvalResult, EvalResult]:
    """Two builds that are wrong in the same documents, the second worse by `gap` on average."""
    level = np.exp(generator.normal(scale=0.5, size=DOCUMENTS)) / 50
    one, two = (level * np.exp(generator.normal(scale=0.3, size=DOCUMENTS)) for _ in range(2))
    return result(one), result(two * (1 + gap))


def test_equal_builds_are_called_different_in_at_most_one_case_of_twenty() -> None:
    """2,000 pairs of builds of one quality: 4.1 % are called different; of 6,000, 4.8 %."""
    generator = np.random.default_rng(11)
    called = sum(paired_difference(*builds(generator), "kl").real for _ in range(2000))
    assert 0.03 < called / 2000 < 0.06


def test_a_difference_is_seen_that_the_two_errors_would_hide() -> None:
    one, two = builds(np.random.default_rng(12), gap=0.3)
    found = paired_difference(two, one, "kl")
    assert found.real
    low, high = found.ci95
    assert 0 < low < found.difference < high
    means = [np.array(r.documents.sum_kl_nats) / TOKENS for r in (one, two)]
    unpaired = np.sqrt(sum(m.var(ddof=1) / DOCUMENTS for m in means))
    assert found.standard_error < 0.8 * unpaired
    assert paired_difference(one, two, "kl").difference == -found.difference


def test_the_same_result_twice_differs_in_nothing() -> None:
    one, _ = builds(np.random.default_rng(13))
    found = paired_difference(one, one, "kl")
    assert (found.difference, found.standard_error, found.real) == (0, 0, False)


def test_no_difference_below_the_noise_floor_is_real() -> None:
    kl = np.linspace(0.01, 0.02, DOCUMENTS)
    above = paired_difference(result(kl + 2e-4, floor=1e-4), result(kl), "kl")
    below = paired_difference(result(kl + 2e-4, floor=3e-4), result(kl), "kl")
    assert above.real
    assert not below.real
    assert below.ci95[0] > 0  # certain all the same: it is the floor that forbids it


@pytest.mark.parametrize(("mean", "expected"), [(2.9, False), (3.1, True)])
def test_a_kl_under_three_floors_is_that_of_the_reference(mean: float, expected: bool) -> None:
    assert distinguishable(result(np.full(4, mean), floor=1.0)) is expected


@pytest.mark.parametrize("change", [{"name": "qk@1/256"}, {"tokens_sha256": "u"}])
def test_results_of_other_tokens_are_not_compared(change: dict[str, Any]) -> None:
    kl = np.ones(DOCUMENTS)
    with pytest.raises(InputError, match="the two results differ in") as caught:
        paired_difference(result(kl), result(kl, **change), "kl")
    assert caught.value.hint


def test_a_quantity_that_was_not_measured_is_named() -> None:
    one, two = builds(np.random.default_rng(14))
    with pytest.raises(InputError, match="top1_hits"):
        paired_difference(one, two, "top1")


def test_every_pair_of_one_text_is_compared_and_no_other() -> None:
    one, other = builds(np.random.default_rng(15))
    elsewhere = result(np.ones(DOCUMENTS), tokens_sha256="another text")
    no_sums = one.documents.model_copy(update={"sum_kl_nats": []})
    without = one.model_copy(update={"documents": no_sums})
    assert list(paired_differences([one, None, other, elsewhere, without])) == [(0, 2)]


def test_pairing_sees_what_two_errors_side_by_side_would_hide() -> None:
    """Builds 30 % apart, whose documents share their difficulty: the paired interval excludes 0."""
    found = paired_differences(builds(np.random.default_rng(12), gap=0.3))[0, 1]
    assert found.real
    assert found.mean < -found.half_width
