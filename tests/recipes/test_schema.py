import pytest

from quantkit.core.errors import InputError
from quantkit.core.limit import Gate
from quantkit.core.recipe import Override
from quantkit.recipes.document import parse
from quantkit.recipes.schema import family_of, recipe_of

LEAST = "name: mine\nmethod: gptq\nformat: gptq\n"


def test_all_faults_come_at_once_with_place_and_key() -> None:
    text = (
        "name: mine\n"
        "method: gptw\n"
        "fromat: gptq\n"
        "scheme:\n"
        "  bits: 9\n"
        "  grop_size: 64\n"
        "  symmetric: yes\n"
        "options: {damp: .nan}\n"
        "overrides:\n"
        "  - {match: '*.down_proj'}\n"
        "  - {match: 're:(', skip: true}\n"
        "calibration: {samples: -1}\n"
        "gates: ['kl.mena < 0.1', 'kl.mean ~ 1']\n"
    )
    with pytest.raises(InputError) as caught:
        recipe_of(parse(text, "f.yaml"))
    lines = str(caught.value).splitlines()
    assert lines[0] == "recipe `mine` has 12 errors"
    expected = (
        "f.yaml: format: is missing",
        "f.yaml:2:1: method: unknown method `gptw`; known: ",
        "f.yaml:3:1: fromat: unknown key",
        "f.yaml:5:3: scheme.bits: expected 2, 3, 4, 5, 6, 7 or 8, not 9",
        "f.yaml:6:3: scheme.grop_size: unknown key",
        "f.yaml:7:3: scheme.symmetric: expected a valid boolean, not 'yes'",
        "f.yaml:8:11: options.damp: ",
        "f.yaml:10:5: overrides.0: an override must either skip, or set",
        "f.yaml:11:6: overrides.1.match: invalid regular expression",
        "f.yaml:12:15: calibration.samples: expected greater than or equal to 0, not -1",
        "f.yaml:13:9: gates.0: unknown figure `kl.mena`",
        "f.yaml:13:26: gates.1: `kl.mean ~ 1` is not a gate",
    )
    for told, line in zip(expected, lines[1:], strict=False):
        assert line.startswith(told)
    assert lines[-1].startswith("try: ")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("shceme: {}", "scheme"),
        ("scheme: {bit: 4}", "bits"),
        ("calibration: {sample: 4}", "samples"),
        ("scheme: {bits: 9}", "2, 3, 4, 5, 6, 7 or 8"),
        ("gates: [kl.men < 1]", "kl.mean"),
        ("gate_policy: {undecide: fail}", "undecided"),
    ],
)
def test_the_nearest_name_is_proposed(text: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        recipe_of(parse(LEAST + text, "f"))
    assert caught.value.hint == hint


def test_gates_and_overrides_are_understood() -> None:
    text = (
        f"{LEAST}gates: ['kl.mean < 0.05', 'top1_agreement >= 90%']\n"
        "gate_policy: {undecided: fail}\n"
        "overrides: [{match: '*.o_proj', skip: true}, {match: 're:.*up', group_size: channel}]\n"
    )
    recipe = recipe_of(parse(text, "f"))
    assert recipe.gates == (Gate("kl.mean", "<", 0.05), Gate("top1_agreement", ">=", 90.0, "%"))
    assert recipe.undecided == "fail"
    assert recipe.overrides == (
        Override("*.o_proj", skip=True),
        Override("re:.*up", group_size="channel"),
    )


@pytest.mark.parametrize("size", ["0", "-1", "true", "64.0", "big", "'64'"])
def test_a_group_size_is_a_number_or_a_word(size: str) -> None:
    with pytest.raises(InputError, match="group_size"):
        recipe_of(parse(f"{LEAST}scheme: {{group_size: {size}}}", "f"))


def test_underscore_and_dash_are_one_in_names() -> None:
    recipe = recipe_of(parse("name: n\nmethod: gptq\nformat: gptq_v2\n", "f"))
    assert recipe.format == "gptq-v2"


def test_a_family_needs_model_types() -> None:
    with pytest.raises(InputError, match="model_types: is missing"):
        family_of(parse("name: x\nnotes: [a fact]\n", "f"))
