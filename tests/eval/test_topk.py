import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.eval.topk import compress, divergence


def pair(seed: int, vocab: int, sharp: float, moved: float) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(24, vocab, generator=draw) * sharp
    other = logits + moved * torch.randn(logits.shape, generator=draw)
    return torch.log_softmax(logits, -1), torch.log_softmax(other, -1)


def exact(log_p: torch.Tensor, log_q: torch.Tensor) -> torch.Tensor:
    p, q = log_p.double(), log_q.double()
    return (p.exp() * (p - q)).sum(-1)


@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 400),
    kept=st.integers(1, 400),
    sharp=st.floats(0, 25),
    moved=st.floats(0, 12),
)
@settings(max_examples=300)
def test_the_truth_lies_between_the_bounds_always(
    seed: int, vocab: int, kept: int, sharp: float, moved: float
) -> None:
    log_p, log_q = pair(seed, vocab, sharp, moved)
    found = divergence(compress(log_p, torch.Generator().manual_seed(seed), kept), log_q)
    truth = exact(log_p, log_q)
    slack = 2e-6 * (1 + truth)  # of the fp32 logarithms that are stored
    assert bool((found.lower <= truth + slack).all())
    assert bool((truth <= found.upper + slack).all())
    assert bool((found.estimate >= found.lower).all())
    assert bool(found.estimate.isfinite().all())


def test_the_upper_bound_is_reached_where_the_tail_is_the_worst() -> None:
    """p's tail at c where q is smallest: no other tail of its sum is further away."""
    p = torch.tensor([[0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05]])
    q = torch.tensor([[0.3, 0.2, 0.01, 0.02, 0.03, 0.04, 0.05, 0.35]])
    tail = torch.tensor([[0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0]]).double()
    found = divergence(compress(p.log(), torch.Generator(), kept=2), q.log())
    worst = torch.xlogy(tail, tail / q.double()).sum()
    assert found.upper.item() == pytest.approx(worst.item(), rel=1e-5)


def test_nothing_is_lost_where_all_tokens_are_kept() -> None:
    log_p, log_q = pair(3, 100, 2, 0.5)
    found = divergence(compress(log_p, torch.Generator(), kept=100), log_q)
    for figure in (found.estimate, found.lower, found.upper):
        assert torch.allclose(figure, exact(log_p, log_q), atol=1e-6)
    assert found.variance.max() == 0


def test_the_estimate_is_unbiased_and_its_error_is_what_is_said() -> None:
    """Over 400 draws of the samples: the mean is the truth, the spread that of the variances."""
    log_p, log_q = pair(4, 2000, 1.5, 0.4)
    truth = exact(log_p, log_q).mean().item()
    means, variances = [], []
    lower = divergence(compress(log_p, torch.Generator(), 32), log_q).lower.mean()
    for seed in range(400):
        found = divergence(compress(log_p, torch.Generator().manual_seed(seed), 32), log_q)
        means.append(found.estimate.mean().item())
        variances.append(found.variance.sum().item() / len(log_p) ** 2)
    values = torch.tensor(means, dtype=torch.float64)
    assert lower < 0.8 * truth  # the bound alone would be far too low
    assert values.mean().item() == pytest.approx(truth, abs=4 * values.std().item() / 20)
    assert values.std().item() == pytest.approx(math.sqrt(sum(variances) / 400), rel=0.15)


def test_a_model_does_not_differ_from_itself() -> None:
    log_p, _ = pair(5, 1000, 3, 0)
    found = divergence(compress(log_p, torch.Generator(), 16), log_p)
    assert found.estimate.abs().max() < 1e-6
    assert found.lower.abs().max() < 1e-9
