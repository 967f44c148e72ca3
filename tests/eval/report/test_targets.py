from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.eval.report.load import load_study
from quantkit.eval.report.page_data import page_data
from quantkit.eval.report.targets import CARDS, default_target, limits, offer, size_label

sizes = st.integers(10**4, 10**12)


@pytest.mark.parametrize("card", [8, 24, 80, 141])
def test_a_card_is_offered_with_its_exact_bytes_and_both_names(card: int) -> None:
    size = card * 2**30
    assert size in limits(size / 2, size)
    assert size_label(size).endswith(f"GB ({card} GB card)")
    assert size_label(24 * 2**30) == "25.8 GB (24 GB card)"
    assert [size_label(n) for n in (24 * 10**9, 1_500_000)] == ["24 GB", "1.5 MB"]


@given(sizes, sizes)
def test_limits_rise_in_small_steps_around_the_range(one: int, other: int) -> None:
    low, high = sorted((one, other))
    steps = limits(low, high)
    assert steps == sorted(set(steps))
    assert all(b <= 1.6 * a for a, b in pairwise(steps))
    assert all(size in CARDS or size_label(size)[0] in "123468" for size in steps)


def test_a_stated_limit_is_offered_as_it_is(tmp_path: Path, generated: Any) -> None:
    study = load_study([generated.write_sweep(tmp_path, count=4)])
    study = replace(study, workload={"memory_bytes": 24 * 10**9})
    target = default_target(study)
    assert target.limit_bytes == 24 * 10**9
    assert {24 * 10**9, 24 * 2**30} <= set(offer(study, target).limits)
    assert (page_data(study, target)["unit"], page_data(study, target)["factor"]) == ("GB", 10**9)
