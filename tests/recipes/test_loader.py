import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.core.errors import InputError, ResourceError
from quantkit.core.limit import Gate
from quantkit.core.recipe import CalibrationSpec, Override, Recipe, SchemeSpec
from quantkit.core.registry import names
from quantkit.recipes import document as yaml
from quantkit.recipes.document import parse
from quantkit.recipes.loader import (
    SHIPPED,
    build_recipe,
    dump_recipe,
    list_recipes,
    load_family,
    load_recipe,
)
from quantkit.recipes.schema import document_of, recipe_of

LINE = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cn")), max_size=40)
NAME = LINE.filter(bool)
COUNT = st.integers(1, 10**9)
SIZE = st.sampled_from(["auto", "channel"]) | COUNT
BITS = st.sampled_from([2, 3, 4, 8])
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
SCHEME = st.builds(
    SchemeSpec,
    grid=st.sampled_from(["int", "nf4"]),
    bits=BITS,
    group_size=SIZE,
    symmetric=st.booleans(),
    activation=st.sampled_from([None, "int8-token"]),
    double_quant=st.booleans(),
)
PATTERN = NAME.filter(lambda text: not text.startswith("re:"))
OVERRIDE = st.builds(Override, match=PATTERN, skip=st.just(True)) | st.builds(
    Override,
    match=PATTERN,
    bits=BITS,
    group_size=st.none() | SIZE,
    symmetric=st.none() | st.booleans(),
)
RECIPE = st.builds(
    Recipe,
    name=NAME,
    method=st.sampled_from(names("methods") or ("gptq",)),
    format=st.sampled_from(names("formats")),
    description=LINE,
    scheme=SCHEME,
    options=st.dictionaries(
        NAME, st.none() | st.booleans() | st.integers() | FLOAT | LINE, max_size=3
    ),
    overrides=st.lists(OVERRIDE, max_size=3).map(tuple),
    calibration=st.builds(
        CalibrationSpec,
        text=NAME,
        samples=COUNT,
        sequence_length=COUNT,
        experts=st.sampled_from(["routed", "all"]),
    ),
    gates=st.lists(
        st.builds(
            Gate,
            figure=st.sampled_from(["kl.mean", "top1_agreement", "tasks.gsm8k.recovery"]),
            operator=st.sampled_from(["<", "<=", ">", ">=", "=="]),
            value=st.none() | st.floats(-1e9, 1e9),
            factor=st.floats(0.5, 2),
        ),
        max_size=3,
    ).map(tuple),
    undecided=st.sampled_from(["warn", "fail"]),
)


@settings(deadline=None)
@given(RECIPE)
def test_a_dumped_recipe_is_read_back_equal(recipe: Recipe) -> None:
    assert recipe_of(parse(dump_recipe(recipe), "f")) == recipe


@pytest.mark.parametrize(
    "info", [info for info in list_recipes() if info.path], ids=lambda info: info.name
)
def test_every_shipped_recipe_loads_and_says_how_to_run_it(info: object, tmp_path: Path) -> None:
    assert dataclasses.is_dataclass(info)
    name, description, path = (getattr(info, f.name) for f in dataclasses.fields(info))
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description == description != ""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    flag = f" --method {name}" if name in names("methods") else f" --recipe {name}"
    assert first == "# quantkit quantize MODEL -o OUT" + (flag if name != "gptq" else "")
    copy = tmp_path / "copy.yaml"
    copy.write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(str(copy)) == recipe


def test_every_method_has_a_recipe_of_its_name() -> None:
    for method in names("methods"):
        assert build_recipe(method=method).method == method


def test_nothing_stated_is_gptq() -> None:
    assert build_recipe() == load_recipe("gptq")


def test_flags_and_settings_are_laid_on_the_base_in_this_order() -> None:
    recipe = build_recipe(
        "gptq-w3",
        bits=2,
        group_size="channel",
        samples=16,
        settings=["scheme.bits=8", "options.damp=0.05", "engines=[]", "gates=[kl.mean < 0.1]"],
    )
    assert recipe.name == "gptq-w3"
    assert recipe.scheme == SchemeSpec(bits=8, group_size="channel")
    assert recipe.options == {"damp": 0.05}
    assert recipe.calibration == CalibrationSpec(samples=16)
    assert recipe.gates == (Gate("kl.mean", "<", 0.1),)


def test_another_method_drops_the_options_of_the_base() -> None:
    assert build_recipe("mxfp4").options["order"] == "full"
    assert build_recipe("mxfp4", method="gptq").options["order"] == "full"
    plain = build_recipe("mxfp4", method="rtn", settings=["options.search=false"])
    assert (plain.method, plain.options["search"]) == ("rtn", False)


def test_a_number_of_inputs_may_come_as_text() -> None:
    assert build_recipe(group_size="48").scheme.group_size == 48


def test_an_asymmetric_grid_takes_a_format_that_holds_it_unless_one_was_named(
    tmp_path: Path,
) -> None:
    assert build_recipe(symmetric=False).format == "gptq-v2"
    assert build_recipe(settings=["scheme.symmetric=false"], method="rtn").format == "gptq-v2"
    assert build_recipe(symmetric=False, format="gptq").format == "gptq"
    assert build_recipe(symmetric=False, settings=["format=gptq"]).format == "gptq"
    assert build_recipe(symmetric=True).format == "gptq"
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: gptq\nscheme: {symmetric: false}\n")
    assert load_recipe(str(mine)).format == "gptq"
    assert build_recipe(str(mine)).format == "gptq-v2"
    mine.write_text("extends: gptq\nformat: gptq\nscheme: {symmetric: false}\n")
    assert build_recipe(str(mine)).format == "gptq"


def test_a_file_extends_a_shipped_recipe_and_is_named_for_itself(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: gptq-w3\ncalibration: {samples: 7}\n")
    recipe = load_recipe(str(mine))
    assert recipe.name == "mine"
    assert (recipe.scheme.bits, recipe.scheme.group_size) == (3, 64)
    assert recipe.calibration == CalibrationSpec(samples=7)


@pytest.mark.parametrize("base", ["nothing", "[gptq]", "../gptq", "1"])
def test_only_shipped_recipes_are_extended(base: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"extends: {base}\n")
    with pytest.raises(InputError):
        load_recipe(str(mine))


@pytest.mark.parametrize(
    ("call", "told", "hint"),
    [
        ({"method": "gptw"}, "unknown method `gptw`", "--method gptq"),
        ({"recipe": "gtpq"}, "unknown recipe `gtpq`", "--recipe gptq"),
        ({"recipe": "missing.yaml"}, "no recipe file `missing.yaml`", "quantkit recipes list"),
        ({"format": "gptq_v3"}, "--format: unknown format `gptq_v3`", "--format gptq-v2"),
        ({"bits": 9}, "--bits: expected 2, 3, 4, 5, 6, 7 or 8, not 9", "--bits 8"),
        ({"group_size": "x"}, "--group-size: expected", "--group-size 128"),
        (
            {"settings": ["calibration.experts=most"]},
            "--set calibration.experts: expected 'routed' or 'all', not 'most'",
            "--set calibration.experts=routed",
        ),
        ({"samples": -1}, "--samples: expected", InputError.remedy),
        ({"settings": ["scheme.bit=4"]}, "--set scheme.bit: unknown key", "--set scheme.bits=4"),
        ({"settings": ["bits=4"]}, "--set bits: unknown key", "--set scheme.bits=4"),
        ({"settings": ["damp=0.1"]}, "--set damp: unknown key", "--set options.damp=0.1"),
        ({"settings": ["damp"]}, "--set damp: expected key=value", "--set options.damp=0.05"),
        ({"settings": ["a..b=1"]}, "--set a..b=1: expected key=value", "--set options.damp=0.05"),
        ({"settings": ["scheme=3"]}, "--set scheme: expected", InputError.remedy),
        (
            {"settings": ['overrides=[{match: "*", bits: 9}]']},
            "--set overrides: overrides.0.bits: expected",
            "2, 3, 4, 5, 6, 7 or 8",
        ),
    ],
)
def test_what_is_wrong_names_the_flag(call: dict[str, object], told: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        build_recipe(**call)  # type: ignore[arg-type]  # wrong on purpose
    assert caught.value.what.startswith(told)
    assert caught.value.hint == hint
    assert caught.value.exit_code == 2


def test_a_folder_or_binary_file_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        load_recipe(str(tmp_path))
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"a: \xff")
    with pytest.raises(InputError, match="not UTF-8 at byte 3"):
        load_recipe(str(binary))


def test_an_unreadable_file_is_no_fault_of_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: gptq\n")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ResourceError, match="Permission denied"):
        load_recipe(str(mine))


def test_families_are_found_by_model_type_and_each_type_once() -> None:
    files = sorted(SHIPPED.glob("families/*.yaml"))
    assert files
    types: list[str] = []
    for path in files:
        family = load_family(
            yaml.parse(path.read_text(encoding="utf-8"), "").data["model_types"][0]
        )
        assert family is not None
        assert family.name == path.stem
        assert family.notes or family.overrides
        types += family.model_types
    assert load_family("gemma3_text") == load_family("gemma3")
    assert load_family("of-no-family") is None
    assert len(types) == len(set(types))


def test_the_recipe_of_an_artifact_is_read_from_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = build_recipe("gptq", bits=3, settings=["overrides=[{match: '*.down_proj', bits: 8}]"])
    (tmp_path / "out").mkdir()
    written = {"schema_version": 1, "recipe": document_of(recipe), "modules": ["x" * 2_000_000]}
    (tmp_path / "out" / "quantkit.json").write_text(json.dumps(written))
    monkeypatch.chdir(tmp_path)
    for name in ("out", "out/", str(tmp_path / "out"), "out/quantkit.json"):
        assert load_recipe(name) == recipe
    assert build_recipe("out", group_size=32).scheme.group_size == 32


@pytest.mark.parametrize("text", ["", "[]", '{"recipe": []}', "[" * 100_000, '{"recipe": 1e999}'])
def test_a_manifest_without_a_recipe_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "quantkit.json").write_text(text)
    with pytest.raises(InputError, match="contains no recipe"):
        load_recipe(str(tmp_path))
