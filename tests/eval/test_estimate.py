import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.eval.estimate import clustered_mean


def test_equal_clusters_reduce_to_the_textbook_error() -> None:
    values = torch.randn(10, 7, generator=torch.Generator().manual_seed(1))
    estimate = clustered_mean(values, range(10))
    means = values.double().mean(dim=1)
    assert estimate.value == pytest.approx(means.mean().item())
    assert estimate.standard_error == pytest.approx(means.std().item() / math.sqrt(10))


def test_one_cluster_has_no_error() -> None:
    assert math.isnan(clustered_mean(torch.randn(4, 5), [0] * 4).standard_error)


@given(st.permutations(range(12)))
def test_order_of_windows_changes_nothing(order: list[int]) -> None:
    values = torch.randn(12, 9, generator=torch.Generator().manual_seed(2))
    clusters = [window // 2 for window in range(12)]
    plain = clustered_mean(values, clusters)
    moved = clustered_mean(values[order], [clusters[window] for window in order])
    assert moved.value == pytest.approx(plain.value, rel=1e-12)
    assert moved.standard_error == pytest.approx(plain.standard_error, rel=1e-12)


def coverage(windows_per_document: tuple[int, ...], *, by_document: bool) -> float:
    """Share of simulated texts whose mean +- 1.96 errors holds the truth, 0."""
    generator = torch.Generator().manual_seed(3)
    trials, hits = 600, 0
    clusters = [d for d, count in enumerate(windows_per_document) for _ in range(count)]
    for _ in range(trials):
        topic = torch.randn(len(windows_per_document), generator=generator)
        noise = torch.randn(len(clusters), 16, generator=generator)
        values = topic[clusters][:, None] + noise
        groups = clusters if by_document else range(len(clusters))
        estimate = clustered_mean(values, groups)
        hits += abs(estimate.value) < 1.96 * estimate.standard_error
    return hits / trials


@pytest.mark.parametrize("sizes", [(1,) * 40, (4,) * 40, (1, 2, 3, 4) * 12])
def test_intervals_cover_when_clusters_are_documents(sizes: tuple[int, ...]) -> None:
    assert 0.91 < coverage(sizes, by_document=True) < 0.98


def test_intervals_that_forget_the_documents_do_not() -> None:
    assert coverage((8,) * 20, by_document=False) < 0.7
