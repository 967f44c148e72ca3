import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quantkit.calibration.tokens import load_tokenizer
from quantkit.core.errors import InputError
from quantkit.eval.text import EvaluationText, read_text


@pytest.fixture
def tokenizer(tiny_checkpoint: Callable[..., Path]) -> Any:
    """One token a byte, nothing in front of a text."""
    return load_tokenizer(tiny_checkpoint())


@pytest.fixture
def bos_tokenizer(tiny_checkpoint: Callable[..., Path]) -> Any:
    """The same with BOS in front of every text."""
    from tokenizers.processors import TemplateProcessing

    tokenizer: Any = load_tokenizer(tiny_checkpoint())
    tokenizer._tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return tokenizer


def jsonl(folder: Path, *texts: str) -> str:
    path = folder / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8")
    return str(path)


def test_plain_text_is_cut_as_the_usual_computation_cuts_it(tmp_path: Path, tokenizer: Any) -> None:
    content = "".join(f"Line {i}: what is said here is said once.\n\n" for i in range(4000))
    path = tmp_path / "test.txt"
    path.write_text(content, encoding="utf-8")
    found = read_text(str(path), tokenizer, 100)
    ids = tokenizer(content)["input_ids"]
    count = len(ids) // 100
    assert found.tokens.tolist() == torch.tensor(ids[: count * 100]).view(count, 100).tolist()
    assert found.clusters == tuple(range(count))
    assert found.protocol["name"] == "plain"
    assert found.protocol["text"] == "test.txt"
    assert read_text(str(path), tokenizer, 100, 7).tokens.tolist() == found.tokens[:7].tolist()


def test_the_shipped_text_is_the_default(tokenizer: Any) -> None:
    found = read_text(None, tokenizer, 512)
    assert torch.equal(found.tokens, read_text("default", tokenizer, 512).tokens)
    assert found.protocol["text"] == "smoke"
    assert len(found.tokens) >= 16
    assert found.tokens.shape[1] == 512
    assert len(set(found.clusters)) > 16


def test_windows_belong_to_the_document_they_start_in(tmp_path: Path, tokenizer: Any) -> None:
    source = jsonl(tmp_path, "a" * 29, "b" * 9, "c" * 19)  # an end token after each
    found = read_text(source, tokenizer, 10)
    assert found.clusters == (0, 0, 0, 1, 2, 2)
    assert read_text(jsonl(tmp_path, "a" * 50), tokenizer, 10).clusters == (0, 1, 2, 3, 4)


def test_bos_is_told(tmp_path: Path, tokenizer: Any, bos_tokenizer: Any) -> None:
    text = tmp_path / "plain.txt"
    text.write_text("abcdefghij" * 10, encoding="utf-8")
    source = jsonl(tmp_path, "abcdefghij" * 10)

    def bos(found: EvaluationText) -> tuple[str, int]:
        return found.protocol["bos"], len(found.notes)

    assert bos(read_text(source, tokenizer, 10)) == ("none", 0)
    assert bos(read_text(source, bos_tokenizer, 10)) == ("every window", 0)
    assert bos(read_text(str(text), bos_tokenizer, 10)) == ("first window", 1)


def test_the_hash_is_that_of_the_tokens(tmp_path: Path, tokenizer: Any) -> None:
    def hashes(length: int, text: str) -> tuple[str, str]:
        protocol = read_text(jsonl(tmp_path, text), tokenizer, length).protocol
        return protocol["tokens_sha256"], protocol["text_sha256"]

    one, again, other = hashes(10, "abcd" * 9), hashes(10, "abcd" * 9), hashes(10, "abce" * 9)
    assert one == again
    assert one[0] != other[0]
    assert one[1] != other[1]
    assert hashes(5, "abcd" * 9)[1] == one[1]
    assert hashes(5, "abcd" * 9)[0] != one[0]


def test_no_path_of_the_machine_is_kept(tmp_path: Path, tokenizer: Any) -> None:
    found = read_text(jsonl(tmp_path, "abc" * 100), tokenizer, 10)
    assert str(tmp_path) not in json.dumps(dict(found.protocol))


@pytest.mark.parametrize(
    ("length", "windows", "says"),
    [(1, None, "predict nothing"), (8, 0, "predict nothing"), (999, 1, "999")],
)
def test_windows_that_cannot_be_are_refused(
    tmp_path: Path, tokenizer: Any, length: int, windows: int | None, says: str
) -> None:
    text = tmp_path / "short.txt"
    text.write_text("few words", encoding="utf-8")
    with pytest.raises(InputError, match=says) as caught:
        read_text(str(text), tokenizer, length, windows)
    assert caught.value.hint
