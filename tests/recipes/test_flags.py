import shlex
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.recipes.flags import flags_of
from quantkit.recipes.loader import build_recipe, list_recipes
from quantkit.recipes.schema import document_of

SHIPPED = [info.name for info in list_recipes()]


@settings(max_examples=40)
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
    words = shlex.split(flags_of(recipe))
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


def test_what_flags_cannot_say_is_set_whole() -> None:
    for setting in ("options.damp=0.2", "name=mine", "gates=[kl.mean < 0.05]"):
        recipe = build_recipe("gptq", settings=[setting], samples=16)
        words = shlex.split(flags_of(recipe))
        assert words[:2] == ["--method", "gptq"]
        again = document_of(build_recipe(method="gptq", settings=words[3::2]))
        told = ("name", "description")
        for key, value in document_of(recipe).items():
            assert key in told or again[key] == value
    assert flags_of(build_recipe("gptq")) == "--recipe gptq"
