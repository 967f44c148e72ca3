import math
from collections.abc import Callable

import pytest
import torch

from quantkit.eval.metric import Scores
from quantkit.eval.metrics.kl import METRIC


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
