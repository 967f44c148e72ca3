import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from quantkit.eval.metric import Scores
from quantkit.eval.metrics.true_token_change import METRIC


def test_change_of_probability_by_hand(scores_of: Callable[..., Scores]) -> None:
    own = -torch.tensor([[0.5, 0.25], [0.1, 0.8]]).log()
    reference = -torch.tensor([[0.4, 0.35], [0.1, 0.4]]).log()
    found = METRIC.measure(replace(scores_of(nll=own), beside={"nll": reference.flatten()}))
    figures = found["true_token_change"]
    assert figures["mean"] == pytest.approx(0.1)
    assert figures["standard_error"] == pytest.approx(0.1)
    assert figures["rms"] == pytest.approx(math.sqrt((0.01 + 0.01 + 0 + 0.16) / 4))
    assert (figures["p001"], figures["p999"]) == pytest.approx((-0.1, 0.4))


def test_needs_a_reference(scores_of: Callable[..., Scores]) -> None:
    assert METRIC.measure(scores_of()) == {}
