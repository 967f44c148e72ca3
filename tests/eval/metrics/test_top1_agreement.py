from collections.abc import Callable

import pytest
import torch

from quantkit.eval.metric import Scores
from quantkit.eval.metrics.top1_agreement import METRIC


def test_share_and_error_by_hand(scores_of: Callable[..., Scores]) -> None:
    agreement = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
    figures = METRIC.measure(scores_of(agreement=agreement))
    low, high = figures.pop("top1_ci95")
    assert figures == pytest.approx({"top1_agreement": 0.75, "top1_standard_error": 0.25})
    assert (low, high) == (0.5, 1)


def test_needs_a_reference(scores_of: Callable[..., Scores]) -> None:
    assert METRIC.measure(scores_of()) == {}
