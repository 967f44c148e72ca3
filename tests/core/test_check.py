"""Which paths a problem explains."""

import pytest

from quantkit.core.check import Blamed


@pytest.mark.parametrize(
    ("path", "covered"),
    [
        ("a.b", True),
        ("a.b.scales", True),
        ("a", True),
        ("a.bc", False),
        ("a.c", False),
        ("b", False),
        ("config.json", False),
    ],
)
def test_a_part_and_a_whole_are_explained(path: str, covered: bool) -> None:
    blamed = Blamed()
    blamed.add("a.b")
    assert blamed.covers(path) is covered
