import pytest

from quantkit.core.units import duration, excess, gigabytes, size, span, with_error


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (12_345_678, "12.3 MB"), (1.2e12, "1.2 TB")],
)
def test_sizes_have_three_figures(count: float, shown: str) -> None:
    assert size(count) == shown


def test_columns_are_in_gigabytes() -> None:
    assert [gigabytes(count) for count in (0, 9_990_000_000, 131_400_000_000)] == [
        "0.00",
        "9.99",
        "131.4",
    ]


def test_what_is_missing_is_never_nothing() -> None:
    assert [excess(count) for count in (1, 10**7, 2 * 10**10)] == ["under 0.01", "0.01", "20.0"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        ((5, 40), "5 to 40 seconds"),
        ((60, 240), "1 to 4 minutes"),
        ((3600, 3e5), "1 to 83 hours"),
        ((1e6, 8e6), "12 to 93 days"),
    ],
)
def test_spans_are_in_the_unit_of_the_longer(seconds: tuple[float, float], shown: str) -> None:
    assert span(seconds) == shown


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.04, "0.0 s"), (9.9, "9.9 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (7500, "2 h 05 min")],
)
def test_durations_are_short(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_a_figure_stands_with_its_error() -> None:
    assert with_error(27.71234, 1.234) == "27.7 +- 1.2"
    assert with_error(0.09126, 0.00312) == "0.0913 +- 0.0031"
    assert with_error(5000.0, 123.0) == "5000 +- 123"
    assert with_error(1.0, 0.0) == "1"
    assert with_error(27.71234, None) == "27.71"
    assert with_error(None, None) == "-"
