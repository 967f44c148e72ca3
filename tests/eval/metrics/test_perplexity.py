import math
from collections.abc import Callable

import pytest
import torch

from quantkit.eval.metric import Scores
from quantkit.eval.metrics.perplexity import METRIC, token_nll


def test_nll_is_that_of_the_target() -> None:
    log_probs = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]).log()
    nll = token_nll(log_probs, torch.tensor([1, 2]))
    assert nll.tolist() == pytest.approx([-math.log(0.25), -math.log(0.7)])


def test_uniform_guessing_has_the_vocabulary_as_perplexity(
    scores_of: Callable[..., Scores],
) -> None:
    figures = METRIC.measure(scores_of(nll=torch.full((4, 10), math.log(7))))
    assert set(figures) == {"perplexity"}
    assert figures["perplexity"] == pytest.approx({"value": 7, "standard_error": 0}, abs=1e-5)


def test_error_of_a_known_case(scores_of: Callable[..., Scores]) -> None:
    nll = torch.tensor([[1.0, 3.0], [2.0, 4.0]])
    figures = METRIC.measure(scores_of(nll=nll))["perplexity"]
    assert figures == pytest.approx({"value": math.exp(2.5), "standard_error": math.exp(2.5) * 0.5})


def test_ratio_is_known_better_than_either_perplexity(scores_of: Callable[..., Scores]) -> None:
    nll = torch.randn(32, 20, generator=torch.Generator().manual_seed(0)).abs() * 3
    both = METRIC.measure(scores_of(nll=nll + 0.01, reference_nll=nll))
    figures, reference = both["perplexity"], both["reference_perplexity"]
    assert isinstance(figures, dict)
    assert isinstance(reference, dict)
    assert figures["log_ratio"] == pytest.approx(0.01, rel=1e-4)
    assert figures["log_ratio_standard_error"] < 1e-6 < figures["standard_error"]
    assert math.log(figures["value"] / reference["value"]) == pytest.approx(figures["log_ratio"])


def test_hopeless_models_give_infinity_and_broken_ones_nan(
    scores_of: Callable[..., Scores],
) -> None:
    for nll, check in ((1e4, math.isinf), (math.nan, math.isnan)):
        figures = METRIC.measure(scores_of(nll=torch.full((2, 3), nll)))["perplexity"]
        assert isinstance(figures, dict)
        assert check(figures["value"])
