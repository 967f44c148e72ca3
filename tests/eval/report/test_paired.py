from typing import Any

from quantkit.eval.report.paired import paired_differences


def test_every_pair_of_one_text_is_compared_and_no_other(generated: Any) -> None:
    one, other = generated.eval_result(1, mean=0.024), generated.eval_result(2, mean=0.026)
    protocol = one.protocol.model_copy(update={"tokens_sha256": "another text"})
    elsewhere = one.model_copy(update={"protocol": protocol})
    without = generated.eval_result(3, parts=())
    found = paired_differences([one, None, other, elsewhere, without])
    assert list(found) == [(0, 2)]


def test_pairing_sees_what_two_errors_side_by_side_would_hide(generated: Any) -> None:
    """Builds 8 % apart, whose documents share their difficulty: the paired interval excludes 0."""
    one, other = generated.eval_result(1, mean=0.024), generated.eval_result(2, mean=0.026)
    found = paired_differences([one, other])[0, 1]
    assert found.real
    assert found.mean < -found.half_width
    spread = [k / 512 for k in one.documents.sum_kl_nats]
    mean = sum(spread) / len(spread)
    alone = 1.96 * (sum((x - mean) ** 2 for x in spread) / len(spread) ** 2) ** 0.5
    assert found.half_width < alone / 2


def test_a_difference_below_the_noise_of_the_original_is_not_real(generated: Any) -> None:
    one = generated.eval_result(1, mean=0.0010)
    sums = [k - 512 * 0.0002 for k in one.documents.sum_kl_nats]
    documents = one.documents.model_copy(update={"sum_kl_nats": sums})
    found = paired_differences([one, one.model_copy(update={"documents": documents})])[0, 1]
    assert found.half_width < abs(found.mean) < 0.0004
    assert not found.real
