"""Hostile safetensors files: each is refused by name, or is what the safetensors library reads."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save, save_file

from quantkit.checkpoint.files import opened
from quantkit.checkpoint.header import MAX_EMPTY, parse_header, read_header
from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import IntegrityError, QuantkitError, RefusedError

A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "I8", "shape": [3], "data_offsets": [8, 11]}


def parse(raw: bytes, data_bytes: int = 11) -> dict[str, TensorInfo]:
    return parse_header(raw, "model.safetensors", 8 + len(raw) + data_bytes)


def header(**changes: Any) -> bytes:
    """A header of two tensors `a`, `b`, with entries replaced or added."""
    return json.dumps({"a": A, "b": B} | changes).encode()


def test_sound_header_is_read() -> None:
    raw = header(__metadata__={"format": "pt"}) + b"   "
    begin = 8 + len(raw)
    assert parse(raw) == {
        "a": TensorInfo("F32", (2,), "model.safetensors", begin, begin + 8),
        "b": TensorInfo("I8", (3,), "model.safetensors", begin + 8, begin + 11),
    }


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b" " + header(), "does not begin with"),
        (b"[]", "does not begin with"),
        (b"", "does not begin with"),
        (header()[:-1], "is not valid JSON"),
        (header()[:-1] + b', "a": ' + json.dumps(A).encode() + b"}", "has the key 'a' twice"),
        (header(c=5), "must have exactly dtype, shape and data_offsets"),
        (header(a=A | {"extra": 1}), "must have exactly dtype, shape and data_offsets"),
        (
            header(a={"dtype": "F32", "shape": [2]}),
            "must have exactly dtype, shape and data_offsets",
        ),
        (header(__metadata__={"a": 1}), "not a map of strings"),
        (header(__metadata__=[]), "not a map of strings"),
        (header(a=A | {"shape": [-2]}), "has the invalid shape"),
        (header(a=A | {"shape": [2.0]}), "has the invalid shape"),
        (header(a=A | {"shape": [True, 2]}), "has the invalid shape"),
        (header(a=A | {"shape": "2"}), "has the invalid shape"),
        (header(a=A | {"shape": [1] * 100}), "has the invalid shape"),
        (header(a=A | {"shape": [0, 2**62], "data_offsets": [0, 0]}), "has the invalid shape"),
        (header(a=A | {"shape": [2**63, 2**63]}), "has the invalid shape"),
        (header(a=A | {"shape": [2**32, 2**32]}), "needs 73,786,976,294,838,206,464 bytes"),
        (header(a=A | {"data_offsets": [8, 0]}), "its offsets give -8"),
        (header(a=A | {"data_offsets": [-8, 0]}), "has the invalid offsets"),
        (header(a=A | {"data_offsets": [0, 8, 8]}), "has the invalid offsets"),
        (header(a=A | {"data_offsets": [0, 7]}), "its offsets give 7"),
        (header(b=B | {"data_offsets": [7, 10]}), "overlaps"),
        (header(b=B | {"data_offsets": [9, 12]}), "leaves a gap"),
        (header(a=A | {"data_offsets": [2**40, 2**40 + 8]}), "leaves a gap"),
        (header(c=A), "overlaps"),
        (header(c=B | {"data_offsets": [11, 14]}), "3 bytes of data are missing"),
        (json.dumps({"a": A}).encode(), "3 bytes of data are unexpected"),
    ],
)
def test_unsound_header_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        parse(raw)
    assert words in str(caught.value)
    assert "`model.safetensors`" in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    "name", ["../a", "a/../b", "/a", "a\x00", "", "a b", "a\n", "é", "a" * 513, "\x1b[31m", "a\\b"]
)
def test_names_are_plain(name: str) -> None:
    with pytest.raises(IntegrityError, match="not a valid tensor name") as caught:
        parse(header(**{name: B | {"data_offsets": [11, 14]}}), 14)
    assert str(caught.value.why).isprintable()  # nothing in it can steer a terminal


@pytest.mark.parametrize("dtype", ["F4", "C64", "float32", "", 5, None, ["F32"]])
def test_unknown_dtypes_are_refused_by_name(dtype: Any) -> None:
    with pytest.raises(RefusedError, match="which is not supported"):
        parse(header(a=A | {"dtype": dtype}))


def test_empty_tensors_are_few() -> None:
    empty = {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]}
    for count, fits in ((MAX_EMPTY, True), (MAX_EMPTY + 1, False)):
        raw = json.dumps({f"t{i}": empty for i in range(count)}).encode()
        if fits:
            assert len(parse(raw, 0)) == count
        else:
            with pytest.raises(IntegrityError, match="are empty"):
                parse(raw, 0)


def test_no_tensor_at_all_is_a_sound_file() -> None:
    assert parse(b"{}", 0) == {}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "model.safetensors"
    tensors = {
        "w": torch.randn(3, 5, dtype=torch.float32).bfloat16(),
        "x.y": torch.arange(7),
        "odd": torch.arange(3, dtype=torch.int8),
        "scalar": torch.tensor(1.5),
        "none": torch.empty(0, 4),
    }
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def read(path: Path) -> dict[str, TensorInfo]:
    with opened(path) as (fd, fingerprint):
        return read_header(path, fd, fingerprint)


def test_agrees_with_the_safetensors_library(sound: Path) -> None:
    ours = read(sound)
    with safe_open(sound, framework="pt") as theirs:
        assert set(ours) == set(theirs.keys())
        for name, info in ours.items():
            piece = theirs.get_slice(name)
            assert (info.dtype, list(info.shape)) == (piece.get_dtype(), piece.get_shape())


def test_cut_off_anywhere_is_noticed(sound: Path, tmp_path: Path) -> None:
    whole = sound.read_bytes()
    path = tmp_path / "model.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(IntegrityError):
            read(path)


@pytest.mark.parametrize("claim", [0, 7, 10**5, 101 * 2**20, 2**63, 2**64 - 1])
def test_header_size_is_not_believed(sound: Path, tmp_path: Path, claim: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", claim) + sound.read_bytes()[8:])
    with pytest.raises(IntegrityError):
        read(path)


def test_any_flipped_bit_of_the_header_is_an_error_or_harmless(sound: Path) -> None:
    """Only names, dtypes of equal width and shapes of equal size can change without being seen."""
    whole, before = sound.read_bytes(), read(sound)
    end = min(info.start for info in before.values())
    passed = 0
    for position in range(8 * 8, end * 8):
        raw = bytearray(whole[8:end])
        raw[position // 8 - 8] ^= 1 << position % 8
        try:
            after = parse_header(bytes(raw), sound.name, len(whole))
        except QuantkitError as error:
            assert error.exit_code in (4, 6)  # noqa: PT017 - most flips raise, some need not
            continue
        lengths = sorted(info.nbytes for info in after.values())
        assert lengths == sorted(info.nbytes for info in before.values())
        passed += 1
    assert passed < end  # of eight times as many flips


@given(st.binary(max_size=200), st.integers(0, 50))
def test_garbage_never_escapes_as_another_error(raw: bytes, data: int) -> None:
    try:
        parse(b"{" + raw, data)
    except QuantkitError as error:
        assert error.exit_code in (4, 6)  # noqa: PT017 - garbage may by chance be sound


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**70) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["dtype", "shape", "data_offsets", "a"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), json_values, max_size=3))
def test_well_formed_nonsense_never_escapes_as_another_error(value: dict[str, Any]) -> None:
    try:
        parse(json.dumps(value).encode())
    except QuantkitError as error:
        assert error.exit_code in (4, 6)  # noqa: PT017


@given(st.permutations(range(4)))
def test_order_of_entries_does_not_matter(order: list[int]) -> None:
    entries = {
        f"t{i}": {
            "dtype": "I8",
            "shape": [i + 1],
            "data_offsets": [i * (i + 1) // 2, (i + 1) * (i + 2) // 2],
        }
        for i in range(4)
    }
    shuffled = {f"t{i}": entries[f"t{i}"] for i in order}
    assert parse(json.dumps(shuffled).encode(), 10) == parse(json.dumps(entries).encode(), 10)


def test_unaligned_tensors_of_older_writers_are_read() -> None:
    first = {"dtype": "I8", "shape": [3], "data_offsets": [0, 3]}
    second = {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]}
    assert parse(json.dumps({"a": first, "b": second}).encode())["b"].nbytes == 8


def test_library_writes_what_we_read() -> None:
    blob = save({"a": torch.zeros(2), "b": torch.zeros(3, dtype=torch.int8)})
    (length,) = struct.unpack("<Q", blob[:8])
    assert set(parse_header(blob[8 : 8 + length], "s", len(blob))) == {"a", "b"}
