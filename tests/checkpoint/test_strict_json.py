import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantkit.checkpoint.strict_json import MAX_DEPTH, dumps, loads

LIMIT = 10_000
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    scalars | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_what_is_written_is_read(value: Any) -> None:
    assert loads(dumps(value), max_bytes=10**6) == value
    assert loads(json.dumps(value).encode(), max_bytes=10**6) == value


def test_keys_keep_their_order() -> None:
    assert list(loads(dumps({"z": 1, "a": 2}), max_bytes=LIMIT)) == ["z", "a"]


def test_infinity_is_read_as_transformers_writes_it_where_asked() -> None:
    data = b'{"limit": [0.0, Infinity], "low": -Infinity}'
    found = loads(data, max_bytes=LIMIT, infinite=True)
    assert found == {"limit": [0.0, {"__float__": "Infinity"}], "low": {"__float__": "-Infinity"}}
    for wrong in (b"[NaN]", b"[1e999]"):
        with pytest.raises(ValueError, match="contains"):
            loads(wrong, max_bytes=LIMIT, infinite=True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"a": 1, "a": 1}', "has the key 'a' twice"),
        (b'{"x": [{"a": 1, "b": 2, "a": 3}]}', "has the key 'a' twice"),
        (b'{"eps": NaN}', "contains NaN"),
        (b"[-Infinity]", "contains -Infinity"),
        (b"[1e999]", "contains 1e999"),
        (b"[" + b"9" * 5000 + b"]", "is not valid JSON"),
        (b"\xef\xbb\xbf{}", "is not valid JSON"),
        (b"\xff\xfe{\x00}\x00", "is not UTF-8"),
        (b'["\xff"]', "is not UTF-8 at byte 2"),
        (b'["\\ud800"]', "half of a surrogate pair"),
        (b'{"\\uDFFF": 1}', "half of a surrogate pair"),
        (b"[" * 1000 + b"]" * 1000, "nests deeper"),
        (b"[" * 100_000 + b"]" * 100_000, "more than"),
        (b"{'a': 1}", "is not valid JSON"),
        (b"", "is not valid JSON"),
        (b"{} {}", "is not valid JSON"),
        (b" " * (LIMIT + 1), "more than the 10,000 allowed"),
    ],
)
def test_what_is_no_strict_json_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        loads(data, max_bytes=LIMIT)
    assert words in str(caught.value) or (
        words == "is not valid JSON" and "integer string" in str(caught.value)
    )


def test_nesting_of_a_hundred_thousand_does_not_reach_the_stack() -> None:
    with pytest.raises(ValueError, match="nests deeper"):
        loads(b"[" * 100_000 + b"]" * 100_000, max_bytes=10**6)


@pytest.mark.parametrize(("depth", "fits"), [(MAX_DEPTH - 1, True), (MAX_DEPTH, False)])
def test_depth_is_counted_exactly(depth: int, *, fits: bool) -> None:
    data = b"[" * depth + b"1" + b"]" * depth
    if fits:
        loads(data, max_bytes=LIMIT)
    else:
        with pytest.raises(ValueError, match="nests deeper"):
            loads(data, max_bytes=LIMIT)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")]])
def test_what_no_reader_would_take_is_not_written(value: Any) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(value)
