import numpy as np
import pytest

from quantkit.results import bootstrap
from quantkit.results.bootstrap import mean_interval, quantile_intervals, resample
from quantkit.results.estimate import stratified_mean


def test_resamples_have_the_spread_of_the_sample() -> None:
    """Weights sum to the documents, and the mean's spread is the error of the formula."""
    domains = ("a",) * 3 + ("b",) * 5 + ("c",)
    weights, free = resample(domains)
    assert free == 7
    assert weights.sum(axis=1) == pytest.approx(np.full(2000, 9))
    assert weights[:, :3].sum(axis=1).std() > 0  # the single c was joined with the smallest domain
    assert weights[:, 3:8].sum(axis=1) == pytest.approx(np.full(2000, 5))
    values = np.random.default_rng(0).normal(size=9)
    error = stratified_mean(values, np.ones(9), domains).standard_error
    assert (weights @ values / 9).std() == pytest.approx(error, rel=0.05)


def test_the_same_sample_gives_the_same_interval() -> None:
    values = np.random.default_rng(1).normal(size=20)
    first = mean_interval(values, np.ones(20), ["a"] * 20)
    resample.cache_clear()
    assert mean_interval(values, np.ones(20), ["a"] * 20) == first


def test_one_document_has_no_interval() -> None:
    assert np.isnan(mean_interval(np.ones(1), np.ones(1), ["a"])).all()


def skewed(generator: np.random.Generator, documents: int, tokens: int) -> np.ndarray:
    """Token values as a KL has them: log-normal in a document, documents of their own level."""
    level = generator.normal(scale=0.5, size=(documents, 1))
    return np.exp(level + generator.normal(size=(documents, tokens)))


def coverage(documents: int, domains: int, trials: int) -> float:
    """Share of simulated results whose 95 % interval of the mean holds the truth."""
    generator = np.random.default_rng(7)
    truth = np.exp((0.5**2 + 1) / 2)
    names = [f"{i % domains}" for i in range(documents)]
    counts = np.full(documents, 64.0)
    hits = 0
    for _ in range(trials):
        low, high = mean_interval(skewed(generator, documents, 64).sum(axis=1), counts, names)
        hits += low < truth < high
    return hits / trials


@pytest.mark.parametrize(("documents", "least"), [(16, 0.90), (64, 0.92), (512, 0.935)])
def test_intervals_of_a_skewed_mean_cover(documents: int, least: float) -> None:
    """3000 trials give 0.920, 0.940 and 0.955: few skewed documents are the hard case."""
    assert least < coverage(documents, domains=4, trials=800) < 0.97


def test_intervals_of_the_median_cover() -> None:
    generator = np.random.default_rng(8)
    hits = 0
    for _ in range(200):
        values = skewed(generator, 32, 8)
        order = values.ravel().argsort()
        owners = np.arange(32).repeat(8)[order]
        ((low, high),) = quantile_intervals(values.ravel()[order], owners, ["a"] * 32, [0.5])
        hits += low <= 1 <= high  # the truth: both levels are symmetric about 0 in logarithms
    assert 0.90 < hits / 200 < 0.99


def test_bins_cost_next_to_no_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.sort(skewed(np.random.default_rng(9), 20, 400).ravel())
    owners = np.random.default_rng(10).integers(0, 20, size=len(values))
    levels = [0.5, 0.9, 0.99, 0.999]
    coarse = quantile_intervals(values, owners, ["a"] * 20, levels)
    assert len(values) > bootstrap.MOST_BINS
    monkeypatch.setattr(bootstrap, "MOST_BINS", len(values))
    exact = quantile_intervals(values, owners, ["a"] * 20, levels)
    assert np.array(coarse) == pytest.approx(np.array(exact), rel=0.01)
