"""What every check of the registry owes its callers."""

import re
from pathlib import Path
from typing import get_args

import pytest

from quantkit.core import registry
from quantkit.core.check import LAST, Check, Stage


@pytest.mark.parametrize("code", registry.names("checks"))
def test_a_check_says_what_is_wrong_and_what_to_do(code: str) -> None:
    check: Check = registry.load("checks", code, "CHECK")
    assert check.stage in get_args(Stage)
    assert re.fullmatch(r"[a-zA-Z`].*[^.]", check.summary)
    assert check.remedy
    assert 0 <= check.rank <= LAST
    assert callable(check.find)


def test_each_has_a_test_that_plants_its_fault() -> None:
    tests = Path(__file__).parents[1] / "checks"
    own = {name for name in registry.names("checks") if not name.startswith("plain-")}
    found = {path.stem.removeprefix("test_").replace("_", "-") for path in tests.glob("test_*.py")}
    assert own <= found
    for name in own:
        text = (tests / f"test_{name.replace('-', '_')}.py").read_text(encoding="utf-8")
        assert f'"{name}"' in text, name
