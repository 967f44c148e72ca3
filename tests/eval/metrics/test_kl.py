import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.eval.metric import Scores
from quantkit.eval.metrics.kl import METRIC, token_kl


def log_probs(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64).log().float()


def test_three_tokens_by_hand() -> None:
    p = log_probs([0.5, 0.25, 0.25], [0.9, 0.05, 0.05])
    q = log_probs([0.25, 0.5, 0.25], [0.9, 0.05, 0.05])
    by_hand = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    assert token_kl(p, q).tolist() == pytest.approx([by_hand, 0.0], abs=1e-7)


def test_is_not_symmetric_and_has_the_reference_first() -> None:
    p, q = log_probs([0.98, 0.01, 0.01]), log_probs([0.4, 0.3, 0.3])
    assert token_kl(p, q).item() == pytest.approx(
        0.98 * math.log(2.45) - 0.02 * math.log(30), rel=1e-5
    )
    assert token_kl(q, p).item() > 1.5


def test_a_model_does_not_differ_from_itself() -> None:
    p = torch.log_softmax(torch.randn(16, 5000) * 5, dim=-1)
    assert token_kl(p, p.clone()).tolist() == [0.0] * 16


def test_tiny_divergences_keep_their_digits_where_the_plain_sum_loses_them() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(32, 50_000, generator=generator) * 3
    moved = logits + 1e-3 * torch.randn(logits.shape, generator=generator)
    p, q = torch.log_softmax(logits, -1), torch.log_softmax(moved, -1)
    wide_p, wide_q = (torch.log_softmax(x.double(), -1) for x in (logits, moved))
    truth = (wide_p.exp() * (wide_p - wide_q)).sum(-1)
    ours = (token_kl(p, q) - truth).abs().max()
    plain = ((p.exp() * (p - q)).sum(-1) - truth).abs().max()
    assert ours < 2e-10
    assert plain > 100 * ours


@given(st.floats(0, 300), st.floats(0, 300))
def test_far_tails_stay_finite_and_exact(low: float, high: float) -> None:
    """Logits so far apart that p underflows where q does not, or the other way round."""
    one, other = torch.tensor([[0.0, -low, -1.0]]), torch.tensor([[0.0, -high, -1.0]])
    p, q = torch.log_softmax(one, -1), torch.log_softmax(other, -1)
    wide_p, wide_q = (torch.log_softmax(x.double(), -1) for x in (one, other))
    truth = (wide_p.exp() * (wide_p - wide_q)).sum().item()
    assert token_kl(p, q).item() == pytest.approx(truth, rel=1e-4, abs=1e-6)


def test_figures_of_known_tokens(scores_of: Callable[..., Scores]) -> None:
    kl = torch.arange(200, dtype=torch.float32).reshape(4, 50)
    figures = METRIC.measure(scores_of(kl=kl, floor=torch.tensor([0.5, 1.5])))["kl"]
    assert figures["mean"] == pytest.approx(99.5)
    assert figures["median"] == pytest.approx(99.5)
    assert figures["p90"] == pytest.approx(179.1)
    assert figures["p99"] == pytest.approx(197.01)
    assert figures["max"] == 199
    assert figures["floor_mean"] == 1
    assert figures["worst_percent_share"] == pytest.approx((198 + 199) / 19900)
    means = [24.5, 74.5, 124.5, 174.5]
    spread = math.sqrt(sum((m - 99.5) ** 2 for m in means) / 3)
    assert figures["standard_error"] == pytest.approx(spread / 2)
    for name in ("mean", "median", "p99"):
        low, high = figures["ci95" if name == "mean" else f"{name}_ci95"]
        assert low < figures[name] <= high


def test_where_it_arises(scores_of: Callable[..., Scores]) -> None:
    kl = torch.tensor([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]])
    confidence = torch.tensor([[0.1, 0.25, 0.26], [0.5, 0.96, 1.0]])
    found = METRIC.measure(scores_of(kl=kl, confidence=confidence, domains="ab"))["kl"]
    assert found["by_domain"] == {"a": 2, "b": 6}
    assert found["by_confidence"] == [1.5, 4, None, None, 6.5]
    assert found["by_context"] == [3, 4.5, None, None, None, None, None, None]


def test_sampling_of_the_tail_is_added_to_the_error(scores_of: Callable[..., Scores]) -> None:
    kl = torch.rand(6, 100, generator=torch.Generator().manual_seed(0))
    plain = METRIC.measure(scores_of(kl=kl))["kl"]["standard_error"]
    sampled = METRIC.measure(scores_of(kl=kl, variance=torch.full((6, 100), 0.06)))["kl"]
    assert sampled["standard_error"] == pytest.approx(math.hypot(plain, math.sqrt(0.06 / 600)))


def test_needs_a_reference(scores_of: Callable[..., Scores]) -> None:
    assert METRIC.measure(scores_of()) == {}
