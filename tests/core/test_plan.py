from dataclasses import replace

import pytest

from quantkit.core.facts import LinearFacts
from quantkit.core.figure import Figure
from quantkit.core.plan import Plan, make_plan
from quantkit.core.recipe import Override
from quantkit.core.resources import Files, Memory, Time, Work
from quantkit.recipes.loader import build_recipe

LINEARS = [LinearFacts(f"layers.{i}.fc", 64, 128) for i in range(2)]


def test_every_linear_has_a_disposition() -> None:
    recipe = replace(build_recipe("rtn"), overrides=(Override("layers.0.*", skip=True),))
    plan = make_plan(recipe, LINEARS, ())
    assert plan.recipe == recipe
    assert [(d.linear.name, bool(d.scheme), d.reason) for d in plan.dispositions] == [
        ("layers.0.fc", False, "left out by the recipe"),
        ("layers.1.fc", True, ""),
    ]
    assert plan.skipped == ("layers.0.fc",)
    assert list(plan.schemes) == ["layers.1.fc"]
    assert plan.resources() == {}


def test_a_plan_without_a_run_has_no_recipe() -> None:
    with pytest.raises(LookupError):
        _ = Plan().recipe


def test_resources_are_those_that_are_known() -> None:
    stages = (Figure("copying", 3, ""), Figure("solving", 7, ""))
    plan = Plan(files=Files({"a": 100, "b": 20}), memory=Memory(stages), time=Time(Work(), "F32"))
    assert plan.resources() == {"bytes": 120, "work_bytes": 7}
    assert plan.files is not None
    assert plan.files.disk_bytes == 126
    memory = Memory(stages, base_bytes=5, rss_bytes=13)
    timed = replace(plan, memory=memory, time=Time(Work(), "F32", (1.0, 2.0)))
    assert timed.resources() == {
        "bytes": 120,
        "work_bytes": 7,
        "base_rss_bytes": 5,
        "peak_rss_bytes": 13,
        "least_seconds": 1.0,
        "most_seconds": 2.0,
    }
