"""Intervals of medians: what they cover, and when a measurement may stop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quantkit.bench.statistics import (
    is_settled,
    latency_figures,
    median,
    median_interval,
    percentile,
    percentile_interval,
    rate_interval,
    ratio_interval,
)

TIMES = st.lists(st.floats(0.1, 10), min_size=1, max_size=12)


@given(TIMES)
def test_the_interval_holds_the_median_and_lies_within_the_data(values: list[float]) -> None:
    low, high = median_interval(values)
    assert min(values) <= low <= high <= max(values)
    assert low <= median(values) <= high
    assert percentile(values, 0.5) == pytest.approx(median(values))


@given(TIMES, st.floats(0.1, 10))
def test_a_ratio_scales_with_its_values(values: list[float], factor: float) -> None:
    low, high = ratio_interval([factor * value for value in values], values)
    same = ratio_interval(values, values)
    assert (low, high) == pytest.approx((factor * same[0], factor * same[1]))
    assert same[0] <= 1 <= same[1]


def test_the_interval_of_ten_repeats_covers_the_median_nine_times_in_ten() -> None:
    rng = torch.Generator().manual_seed(0)
    drawn = torch.empty(300, 10).log_normal_(
        0, 0.05, generator=rng
    )  # median 1, skewed as times are
    hits = 0
    for repeats in drawn.tolist():
        low, high = median_interval(repeats)
        hits += low <= 1 <= high
    assert 0.88 < hits / len(drawn) < 0.99


def test_a_steady_measurement_is_settled_and_a_short_or_noisy_one_is_not() -> None:
    assert is_settled([1.0, 1.001, 0.999, 1.0, 1.002])
    assert not is_settled([1.0, 1.001, 0.999, 1.0])
    assert not is_settled([1.0, 1.5, 0.8, 1.2, 0.9])


def test_values_that_belong_together_give_a_wider_interval_than_strangers() -> None:
    rng = torch.Generator().manual_seed(0)
    levels = torch.rand(16, 1, generator=rng)
    together = (levels + 0.01 * torch.rand(16, 50, generator=rng)).tolist()
    apart = [[value] for group in together for value in group]
    (a, b), (c, d) = (percentile_interval(groups, 0.5) for groups in (together, apart))
    assert b - a > 2 * (d - c)
    pooled = [value for group in together for value in group]
    assert a <= percentile(pooled, 0.5) <= b


@given(TIMES, st.floats(0.1, 10))
def test_a_rate_is_the_amount_over_the_mean_time(seconds: list[float], amount: float) -> None:
    low, high = rate_interval(seconds, amount)
    exact = amount * len(seconds) / sum(seconds)
    assert low <= exact * (1 + 1e-9)
    assert high >= exact * (1 - 1e-9)
    assert amount / max(seconds) <= low * (1 + 1e-9)


def test_latencies_are_milliseconds_and_nothing_where_nothing_was_timed() -> None:
    found = latency_figures({"ttft_p50": ([[0.2], [0.2]], 0.5), "itl_p99": ([[], []], 0.99)})
    assert found["ttft_p50_ms"] == pytest.approx(200)
    assert found["ttft_p50_ci95"] == pytest.approx((200, 200))
    assert found["itl_p99_ms"] is found["itl_p99_ci95"] is None
