import json
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from quantkit.calibration import text as text_module
from quantkit.calibration.record import Document, record_document
from quantkit.calibration.text import read_documents
from quantkit.core.errors import HubError, InputError, IntegrityError

TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def contents(source: object) -> list[object]:
    return [d.text if d.messages is None else list(d.messages) for d in read_documents(str(source))]


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


# The shipped text


def test_default_is_large_and_varied() -> None:
    documents = list(read_documents("default"))
    assert sum(document.size() for document in documents) >= 300_000
    assert sum(document.messages is not None for document in documents) > 100
    whole = "".join(document.text or "" for document in documents)
    for sign in ("def ", "fn ", "#include", "SELECT ", "func ", "\\frac", "|---", '{"', "der "):
        assert sign in whole
    for script in "жя", "的是", "のは", "ال", "है", "ğı", "ção", "él", "ów":
        assert all(letter in whole for letter in script)


def test_any_beginning_of_default_has_all_kinds() -> None:
    lines = text_module.DEFAULT.read_text(encoding="utf-8").splitlines()
    kinds = {json.loads(line)["kind"] for line in lines}
    assert len(kinds) == 9
    for start in range(0, len(lines) - 200, 100):
        assert {json.loads(line)["kind"] for line in lines[start : start + 200]} == kinds


def test_changed_default_is_an_integrity_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "default.jsonl"
    copy.write_bytes(text_module.DEFAULT.read_bytes().replace(b"the", b"teh", 1))
    monkeypatch.setattr(text_module, "DEFAULT", copy)
    with pytest.raises(IntegrityError) as caught:
        next(read_documents("default"))
    assert caught.value.exit_code == 6
    assert caught.value.hint


# Plain text


def test_short_text_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffOne.\n\nTwo. é".encode())
    assert contents(path) == ["One.\n\nTwo. é"]


@given(paragraphs=st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_long_text_is_cut_at_blank_lines_and_nothing_is_lost(
    tmp_path_factory: pytest.TempPathFactory, paragraphs: list[int]
) -> None:
    whole = "\n\n".join("word " * count for count in paragraphs)
    path = tmp_path_factory.mktemp("long") / "a.txt"
    path.write_text(whole, encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "BLOCK_BYTES", 1000)
        blocks = [document.text or "" for document in read_documents(str(path))]
    assert "".join(blocks) == whole
    assert all(len(block) >= 1000 for block in blocks[:-1])
    assert all(block.startswith("\n") for block in blocks[1:])


def test_text_without_blank_lines_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_module, "LINE_BYTES", 100)
    path = tmp_path / "a.txt"
    path.write_text("x" * 60 + "\n" + "y" * 60 + "\n", encoding="utf-8")
    assert contents(path) == ["x" * 60 + "\n", "y" * 60 + "\n"]


def test_invalid_utf8_is_named_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good\nb\xe4d\n")
    with pytest.raises(InputError, match=r"a\.txt, line 2 is not UTF-8 at byte 1"):
        contents(tmp_path / "a.txt")


# Records


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"text": "hello", "extra": 1}, "hello"),
        ({"text": None}, ""),
        ({"messages": TURNS}, TURNS),
        ({"messages": TURNS, "text": "both"}, TURNS),
        (
            {
                "conversations": [
                    {"from": "human", "value": "Hi"},
                    {"from": "gpt", "value": "Hello"},
                ]
            },
            TURNS,
        ),
        ({"prompt": "Hi", "completion": "Hello"}, TURNS),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}]}
                ]
            },
            [{"role": "user", "content": "ab"}],
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": []}]},
            [{"role": "assistant", "content": ""}],
        ),
    ],
)
def test_record_fields(tmp_path: Path, record: object, expected: object) -> None:
    assert contents(write(tmp_path / "a.jsonl", record)) == [expected]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', "is not valid JSON"),
        (b'{"text": "\xff"}', "is not UTF-8"),
        (b'{"body": "a"}', "has no text"),
        (b'["a"]', "is not a record"),
        (b'{"text": 7}', "expected text, not int"),
        (b'{"messages": {"role": "user"}}', "a conversation must be a list"),
        (b'{"messages": ["hi"]}', "a turn must be a record"),
        (b'{"messages": [{"content": "hi"}]}', "a turn has no `role`"),
        (b'{"text": "\\ud800"}', "surrogate"),
        (b"[" * 100_000, "deep"),
        (b"9" * 5_000, "digits|no record"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n\n' + line + b"\n")
    documents = read_documents(str(path))
    assert next(documents).text == "good"
    with pytest.raises(InputError, match=message) as caught:
        next(documents)
    assert "a.jsonl, line 3" in str(caught.value)
    assert caught.value.exit_code == 2


def test_fields_found_are_named() -> None:
    with pytest.raises(InputError, match=r"'body', 'title'"):
        record_document({"body": "a", "title": "b"}, "here")


def test_line_and_total_are_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.jsonl", {"text": "a" * 300}, {"text": ""}, {"text": ""})
    monkeypatch.setattr(text_module, "LINE_BYTES", 200)
    with pytest.raises(InputError, match="line 1 is longer than 200"):
        contents(path)
    monkeypatch.undo()
    monkeypatch.setattr(text_module, "TOTAL_CHARACTERS", 400)
    with pytest.raises(InputError, match="has more than 400 characters") as caught:
        contents(path)
    assert "line 3" in str(caught.value), "empty records are charged too"


# Parquet


def test_parquet_equals_jsonl(tmp_path: Path) -> None:
    rows = [{"messages": TURNS}, {"messages": TURNS[:1]}, {"messages": None}] * 50
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    expected = contents(write(tmp_path / "a.jsonl", *rows))
    assert contents(tmp_path / "a.parquet") == expected
    assert len(expected) == 150


def test_parquet_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(InputError, match="not a readable Parquet"):
        contents(path)
    parquet.write_table(pa.table({"body": ["a"]}), path)
    with pytest.raises(InputError, match="'body'"):
        contents(path)
    parquet.write_table(pa.table({"text": ["a" * 10_000]}), path)
    monkeypatch.setattr("quantkit.calibration.parquet.UNPACKED_BYTES", 1000)
    with pytest.raises(InputError, match="decompresses to"):
        contents(path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"\[parquet\]"):
        contents(path)


# Folders


def test_folder_is_read_sorted_and_deep(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("c.txt", "b/z.txt", "a.txt", "readme.md", ".hidden/x.txt", ".x.txt"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    assert contents(tmp_path) == ["a.txt", "b/z.txt", "c.txt"]


def test_links_do_not_lead_out_of_a_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("secret", encoding="utf-8")
    (inside / "a.txt").write_text("a", encoding="utf-8")
    (inside / "folder").symlink_to(outside)
    assert contents(inside) == ["a"]
    (inside / "b.txt").symlink_to(outside / "secret.txt")
    with pytest.raises(InputError, match="symbolic link out of the folder"):
        contents(inside)


@pytest.mark.parametrize("name", ["missing.txt", "no such thing", "a/b/c"])
def test_unknown_source(name: str) -> None:
    with pytest.raises(InputError, match="neither a file or folder"):
        contents(name)


def test_sources_without_documents(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no text"):
        contents(tmp_path)
    for name in ("a.txt", "a.jsonl"):
        (tmp_path / name).touch()
        with pytest.raises(InputError, match="contains no documents"):
            contents(tmp_path / name)
    (tmp_path / "a.pdf").touch()
    with pytest.raises(InputError, match="as calibration text"):
        contents(tmp_path / "a.pdf")


# The hub


def fake_datasets(monkeypatch: pytest.MonkeyPatch, splits: object) -> list[object]:
    calls: list[object] = []

    def load_dataset(*args: object, **options: object) -> object:
        calls.append((args, options))
        if isinstance(splits, Exception):
            raise splits
        return splits

    module = ModuleType("datasets")
    vars(module).update(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_hub_data_set_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = ({"text": str(i)} for i in iter(int, 1))
    calls = fake_datasets(monkeypatch, {"test": [], "train": endless})
    documents = list(islice(read_documents("org/name:part@v1.0"), 3))
    assert documents[2] == Document("0", None, "org/name:part@v1.0, row 3")
    assert calls == [(("org/name", "part"), {"revision": "v1.0", "streaming": True})]


def test_first_split_stands_in_for_train(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_datasets(monkeypatch, {"validation": [{"text": "v"}], "test": [{"text": "t"}]})
    assert contents("org/name") == ["v"]


def test_hub_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_datasets(monkeypatch, ConnectionError("offline mode is enabled\ndetails"))
    with pytest.raises(HubError, match="offline mode is enabled") as caught:
        contents("org/name")
    assert "details" not in str(caught.value)
    assert caught.value.exit_code == 7
    fake_datasets(monkeypatch, {"train": [{"body": 1}]})
    with pytest.raises(InputError, match="org/name, row 1 has no text"):
        contents("org/name")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(HubError, match=r"\[datasets\]"):
        contents("org/name")


def test_local_folder_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_datasets(monkeypatch, SimpleNamespace())
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "a.txt").write_text("local", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert contents("org/name") == ["local"]
