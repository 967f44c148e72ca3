import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from quantkit.eval.metric import Scores
from quantkit.eval.metrics.perplexity import METRIC
from quantkit.eval.text import ScoredDocument
from quantkit.stats.divergence import token_nll


def test_nll_is_that_of_the_target() -> None:
    log_probs = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]).log()
    nll = token_nll(log_probs, torch.tensor([1, 2]))
    assert nll.tolist() == pytest.approx([-math.log(0.25), -math.log(0.7)])


def test_uniform_guessing_has_the_vocabulary_as_perplexity(
    scores_of: Callable[..., Scores],
) -> None:
    figures = METRIC.measure(scores_of(nll=torch.full((4, 10), math.log(7))))
    assert set(figures) == {"perplexity"}
    found = figures["perplexity"]
    assert found.pop("ci95") == pytest.approx((7, 7))
    assert found == pytest.approx({"value": 7, "standard_error": 0}, abs=1e-5)


def test_error_of_a_known_case(scores_of: Callable[..., Scores]) -> None:
    nll = torch.tensor([[1.0, 3.0], [2.0, 4.0]])
    figures = METRIC.measure(scores_of(nll=nll))["perplexity"]
    assert figures["value"] == pytest.approx(math.exp(2.5))
    assert figures["standard_error"] == pytest.approx(math.exp(2.5) * 0.5)
    reach = 12.7062 * 0.5  # Student's t with one degree of freedom
    assert figures["ci95"] == pytest.approx(
        (math.exp(2.5 - reach), math.exp(2.5 + reach)), rel=1e-4
    )


def test_per_word_and_byte_where_they_are_counted(scores_of: Callable[..., Scores]) -> None:
    scores = scores_of(nll=torch.full((2, 10), math.log(2)))
    counted = tuple(ScoredDocument(d.id, d.domain, 5, 40) for d in scores.documents)
    figures = METRIC.measure(replace(scores, documents=counted))["perplexity"]
    assert figures["word"] == pytest.approx(4)
    assert figures["byte"] == pytest.approx(2 ** (20 / 80))
    assert figures["bits_per_byte"] == pytest.approx(0.25)


def test_ratio_is_known_better_than_either_perplexity(scores_of: Callable[..., Scores]) -> None:
    nll = torch.randn(32, 20, generator=torch.Generator().manual_seed(0)).abs() * 3
    both = METRIC.measure(replace(scores_of(nll=nll + 0.01), beside={"nll": nll.flatten()}))
    figures, reference = both["perplexity"], both["reference_perplexity"]
    assert figures["log_ratio"] == pytest.approx(0.01, rel=1e-4)
    assert figures["log_ratio_standard_error"] < 1e-6 < figures["standard_error"]
    assert math.log(figures["value"] / reference["value"]) == pytest.approx(figures["log_ratio"])


def test_hopeless_models_give_infinity_and_broken_ones_nan(
    scores_of: Callable[..., Scores],
) -> None:
    for nll, check in ((1e4, math.isinf), (math.nan, math.isnan)):
        figures = METRIC.measure(scores_of(nll=torch.full((2, 3), nll)))["perplexity"]
        assert check(figures["value"])
