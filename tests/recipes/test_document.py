import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantkit.core.errors import InputError
from quantkit.recipes.document import MAX_BYTES, dump, parse, parse_value

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cn")))
SCALARS = TEXT | st.booleans() | st.none() | st.integers() | st.floats(allow_nan=False)
KEYS = TEXT.filter(bool)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_is_dumped_is_read_back(data: dict[str, object]) -> None:
    assert parse(dump(data), "f").data == data


def test_scalars_are_those_of_yaml_1_2() -> None:
    text = "a: 1e-3\nb: no\nc: 22:30\nd: 2026-01-31\ne: 012\nf: ~\ng: true\nh: 0x10\n"
    expected = {"a": 1e-3, "b": "no", "c": "22:30", "d": "2026-01-31"}
    assert parse(text, "f").data == expected | {"e": 12, "f": None, "g": True, "h": 16}


def test_every_path_knows_its_line_and_column() -> None:
    document = parse("a:\n  b: 1\n  c: [x, y]\n", "f.yaml")
    assert document.place(("a", "b")) == "f.yaml:2:3"
    assert document.place(("a", "c", 1)) == "f.yaml:3:10"
    assert document.place(("a", "missing")) == "f.yaml:1:1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: &x 1", "f:1:4: anchors"),
        ("a: [*x]", "f:1:5: aliases"),
        ("a: !!python/object x", "f:1:4: tags"),
        ("<<: {a: 1}", "f:1:1: merge keys"),
        ("%YAML 1.1\n---\na: no", "directives"),
        ("a: 1\nb: 2\na: 3", "f:3:1: duplicate key `a`"),
        ("a: 1\n---\nb: 2", "f:2:1: more than one document"),
        ("1: x", "f:1:1: a key must be text"),
        ("- a", "f:1:1: expected a mapping"),
        ("a: [1", "f:1:6: "),
        ("a: \0", "character not allowed"),
    ],
)
def test_what_is_refused_says_where(text: str, told: str) -> None:
    with pytest.raises(InputError, match=r"^f:") as caught:
        parse(text, "f")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "bomb",
    [
        "a: " + "[" * 100_000,
        "- " * 100_000,
        "? " * 100_000,
        "a: [" + "[]," * 200_000 + "]",
        "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n",
        "".join(f"k{i}: {i}\n" for i in range(50_000)),
        "a: '" + "x" * MAX_BYTES + "'",
    ],
    ids=["depth", "sequences", "keys", "flow", "aliases", "count", "size"],
)
def test_a_bomb_is_refused_before_it_goes_off(bomb: str) -> None:
    start = time.process_time()
    with pytest.raises(InputError):
        parse(bomb, "f")
    assert time.process_time() - start < 10


def test_mappings_merge_key_by_key_and_lists_are_replaced() -> None:
    base = parse("a: {x: 1, y: 2}\nl: [1, 2]\n", "base")
    over = parse("a: {y: 3}\nl: [4]\n", "over")
    merged = base.merged(over)
    assert merged.data == {"a": {"x": 1, "y": 3}, "l": [4]}
    assert merged.place(("a", "x")).startswith("base")
    assert merged.place(("a", "y")).startswith("over")
    assert merged.place(("l", 0)).startswith("over")
    assert base.data["a"] == {"x": 1, "y": 2}


def test_a_setting_is_one_value() -> None:
    assert parse_value("[a, 1e-3]", "--set x") == ["a", 1e-3]
    with pytest.raises(InputError):
        parse_value("1\nb: 2", "--set x")


def test_a_lone_equals_sign_is_text() -> None:
    """YAML 1.1 gave it a meaning of its own."""
    assert parse_value("=", "--set") == "="
    assert parse("a: =\n", "x").data == {"a": "="}
