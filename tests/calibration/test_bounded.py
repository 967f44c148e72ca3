"""Code of strangers in a child: what it makes comes back, what it takes is bounded."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.calibration import bounded as limits
from quantkit.calibration.bounded import bounded


@settings(max_examples=10)
@given(st.text(max_size=200))
def test_text_comes_back_as_it_is(text: str) -> None:
    assert bounded(lambda: text, 200) == text


def test_a_long_text_comes_back_whole_and_one_too_long_does_not() -> None:
    assert bounded(lambda: "ü" * 300_000, 300_000) == "ü" * 300_000
    with pytest.raises(RuntimeError, match="300,001 characters"):
        bounded(lambda: "ü" * 300_001, 300_000)


def test_an_error_comes_back_as_its_text() -> None:
    def fail() -> str:
        raise ValueError("no such role")

    with pytest.raises(RuntimeError, match="no such role"):
        bounded(fail, 100)


def test_neither_time_nor_memory_is_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CPU_SECONDS", 1)

    def forever() -> str:
        while True:
            pass

    with pytest.raises(TimeoutError):
        bounded(forever, 100)
    with pytest.raises(TimeoutError):
        bounded(lambda: "x" * 9_000_000_000, 100)


def test_a_child_that_sleeps_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WALL_SECONDS", 0.2)
    with pytest.raises(TimeoutError):
        bounded(asleep, 100)


def asleep() -> str:
    time.sleep(60)
    return ""
