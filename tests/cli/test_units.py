import pytest

from quantkit.cli.units import duration, size, with_error


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.04, "0.0 s"), (9.9, "9.9 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (7500, "2 h 05 min")],
)
def test_durations_are_short(seconds: float, told: str) -> None:
    assert duration(seconds) == told


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (12_345_678, "12.3 MB"), (1.2e12, "1.2 TB")],
)
def test_sizes_have_three_figures(count: float, told: str) -> None:
    assert size(count) == told


def test_a_figure_stands_with_its_error() -> None:
    assert with_error(27.71234, 1.234) == "27.7 +- 1.2"
    assert with_error(0.09126, 0.00312) == "0.0913 +- 0.0031"
    assert with_error(5000.0, 123.0) == "5000 +- 123"
    assert with_error(1.0, 0.0) == "1"
    assert with_error(27.71234, None) == "27.71"
    assert with_error(None, None) == "-"
