import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.stats.divergence import token_kl


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
