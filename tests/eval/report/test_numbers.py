import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.eval.report.numbers import (
    MINUS,
    duration,
    error,
    fixed,
    percent,
    significant,
    unit_of,
    visible,
)


@given(st.floats(1e-9, 1e9), st.sampled_from([1, -1]), st.integers(1, 5))
def test_a_number_is_within_half_a_step_of_its_text(size: float, sign: int, digits: int) -> None:
    text = significant(sign * size, digits)
    assert float(text.replace(MINUS, "-")) == pytest.approx(
        sign * size, rel=0.5 * 10 ** (1 - digits)
    )
    assert (MINUS in text) == (sign < 0)


@given(st.text())
def test_what_is_shown_can_be_seen(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable()
    assert "\u202e" not in shown
    if re.fullmatch(r"[a-z ]*", text):
        assert shown == text.strip()


def test_numbers_as_people_read_them() -> None:
    assert [significant(x) for x in (0.0148, 1.234, 151.4, 2.81e-6, 0)] == [
        "0.0148",
        "1.23",
        "151",
        "2.81e-6",
        "0",
    ]
    assert fixed(-0.125, 2) == f"{MINUS}0.13"
    assert error(0.0029) == "\u00b1.0029"
    assert percent(0.951) == "95.1\u00a0%"
    assert [duration(s) for s in (0.84, 42, 200, 7510)] == [
        "0.8\u00a0s",
        "42\u00a0s",
        "3:20",
        "2:05:10",
    ]


@given(st.lists(st.none() | st.integers(0, 10**16)))
def test_the_largest_size_is_at_least_one_of_its_decimal_unit(sizes: list[int | None]) -> None:
    name, factor = unit_of(sizes)
    largest = max((size for size in sizes if size), default=1)
    assert factor == {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}[name]
    assert factor <= largest < 1000 * factor or name == "TB"
