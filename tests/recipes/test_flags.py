import shlex
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quantkit.recipes.flags import flags_of
from quantkit.recipes.loader import build_recipe, list_recipes

SHIPPED = [info.name for info in list_recipes()]


@given(
    name=st.sampled_from(SHIPPED),
    bits=st.sampled_from([None, 3, 4, 8]),
    group_size=st.sampled_from([None, 64, "channel"]),
    symmetric=st.sampled_from([None, True, False]),
    samples=st.sampled_from([None, 16]),
    text=st.sampled_from([None, "my text.jsonl"]),
)
def test_the_flags_make_the_recipe(name: str, samples: Any, text: Any, **scheme: Any) -> None:
    recipe = build_recipe(name, samples=samples, calibration=text, **scheme)
    words = shlex.split(flags_of(recipe) or "")
    assert words[:2] == ["--recipe", name]
    flags: dict[str, Any] = {}
    rest = iter(words[2:])
    for word in rest:
        key = word.removeprefix("--").replace("-", "_")
        if key in ("symmetric", "asymmetric"):
            flags["symmetric"] = key == "symmetric"
        else:
            value = next(rest)
            flags[key] = int(value) if value.isdecimal() else value
    assert build_recipe(name, **flags) == recipe


def test_what_flags_cannot_say_has_none() -> None:
    assert flags_of(build_recipe("gptq", settings=["options.damp=0.2"])) is None
    assert flags_of(build_recipe("gptq", settings=["name=mine"])) is None
    assert flags_of(build_recipe("gptq")) == "--recipe gptq"
