import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quantkit.calibration.tokens import load_tokenizer
from quantkit.core.errors import InputError
from quantkit.eval.text import EvaluationText, TextChoice
from quantkit.eval.windows import SMOKE, read_text, vocabulary_hash


@pytest.fixture
def tokenizer(tiny_checkpoint: Callable[..., Path]) -> Any:
    """One token a byte; BOS is known, and not put in front of a text."""
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


def jsonl(folder: Path, *records: tuple[str, str]) -> str:
    path = folder / "documents.jsonl"
    lines = (json.dumps({"domain": domain, "text": text}) + "\n" for domain, text in records)
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def read(source: str | None, tokenizer: Any, length: int = 10, **choice: Any) -> EvaluationText:
    return read_text(TextChoice(source, sequence_length=length, **choice), tokenizer)


def domains(text: EvaluationText) -> str:
    return "".join(document.domain for document in text.documents)


def test_one_window_of_each_document_from_every_domain_in_turn(
    tmp_path: Path, tokenizer: Any
) -> None:
    records = [("a", f"{i}" * 25) for i in range(5)] + [("b", "x" * 12), ("b", "y" * 12)]
    found = read(jsonl(tmp_path, *records), tokenizer)
    assert domains(found) == "ababaaa"
    assert found.clusters == tuple(range(7))
    assert [d.id for d in found.documents][:4] == ["a-1", "b-1", "a-2", "b-2"]
    bos, *first = found.tokens[0].tolist()
    assert bos == 0
    assert first == tokenizer("0" * 10)["input_ids"]
    assert found.spans == ((0, 10),) * 7  # all ten text tokens, from BOS on
    assert found.inputs.shape == (7, 10)
    assert found.protocol["name"] == "qk@1/10"
    assert found.protocol["documents"] == 7
    assert found.documents[0].bytes == 10
    assert domains(read(jsonl(tmp_path, *records), tokenizer, windows=3)) == "aba"


def test_short_documents_are_joined_within_their_domain(tmp_path: Path, tokenizer: Any) -> None:
    records = [("a", "1111"), ("b", "2222"), ("a", "333333"), ("b", "4"), ("b", "55555555")]
    found = read(jsonl(tmp_path, *records), tokenizer)
    assert domains(found) == "ab"
    assert tokenizer.decode(found.tokens[0]) == "<s>1111</s>33333"
    assert tokenizer.decode(found.tokens[1]) == "<s>2222</s>4</s>555"
    assert "joined" in found.notes[0]


def test_bos_stands_once_in_front_whatever_the_tokenizer_does(
    tmp_path: Path, tokenizer: Any, bos_tokenizer: Any
) -> None:
    source = jsonl(tmp_path, ("a", "abcdefghijkl"))
    with_bos = read(source, bos_tokenizer)
    assert torch.equal(with_bos.tokens, read(source, tokenizer).tokens)
    assert with_bos.protocol["bos"] == "every window"
    tokenizer.bos_token = None
    without = read(source, tokenizer)
    assert tokenizer.decode(without.tokens[0]) == "abcdefghijk"  # the first is context only
    assert without.spans == ((0, 10),)
    assert without.protocol["bos"] == "none"


def test_a_document_that_begins_with_bos_is_an_error(tmp_path: Path, tokenizer: Any) -> None:
    source = jsonl(tmp_path, ("a", "<s>abcdefghijklmn"))
    with pytest.raises(InputError, match="starts with the tokenizer's BOS") as caught:
        read(source, tokenizer)
    assert caught.value.hint


def test_conversations_go_through_the_template_whose_bos_counts_once(
    tmp_path: Path, tokenizer: Any
) -> None:
    tokenizer.chat_template = "<s>{% for m in messages %}[{{ m.content }}]{% endfor %}"
    path = tmp_path / "chat.jsonl"
    turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    path.write_text(json.dumps({"domain": "chat", "messages": turns}) + "\n")
    assert tokenizer.decode(read(str(path), tokenizer).tokens[0]) == "<s>[question]"


def test_a_plain_text_has_windows_for_documents(tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "test.txt"
    path.write_text("0123456789" * 5, encoding="utf-8")
    found = read(str(path), tokenizer, windows=4)
    assert [tokenizer.decode(t) for t in found.tokens] == ["<s>0123456789"] * 4
    assert found.clusters == (0, 1, 2, 3)
    assert "no document borders" in found.notes[0]


def test_gptq_s_rule(tmp_path: Path, bos_tokenizer: Any) -> None:
    content = "".join(f"Line {i}: what is said here is said once.\n\n" for i in range(4000))
    path = tmp_path / "test.txt"
    path.write_text(content, encoding="utf-8")
    found = read(str(path), bos_tokenizer, 100, protocol="wikitext2-2048")
    ids = bos_tokenizer(content)["input_ids"]
    count = len(ids) // 100
    assert found.tokens.tolist() == torch.tensor(ids[: count * 100]).view(count, 100).tolist()
    assert found.spans == ((0, 99),) * count
    assert found.protocol["name"] == "wikitext2-2048/100"
    assert found.protocol["bos"] == "first window"
    assert "qk@1" in found.notes[0]
    few = read(str(path), bos_tokenizer, 100, protocol="wikitext2-2048", windows=7)
    assert few.tokens.tolist() == found.tokens[:7].tolist()


def test_rows_are_joined_by_blank_lines_for_gptq_and_by_nothing_for_llama_cpp(
    tmp_path: Path, tokenizer: Any
) -> None:
    source = jsonl(tmp_path, ("", "abcd"), ("", "efgh"))
    gptq = read(source, tokenizer, protocol="wikitext2-2048")
    assert tokenizer.decode(gptq.tokens[0]) == "abcd\n\nefgh"
    assert tokenizer.decode(
        read(source, tokenizer, 8, protocol="wikitext2-llamacpp").tokens[0]
    ) == ("abcdefgh")


def test_llama_cpp_s_rule(tmp_path: Path, tokenizer: Any, bos_tokenizer: Any) -> None:
    path = tmp_path / "test.txt"
    path.write_text("0123456789" * 3, encoding="utf-8")
    plain = read(str(path), tokenizer, protocol="wikitext2-llamacpp")
    assert [tokenizer.decode(t) for t in plain.tokens] == ["0123456789"] * 3
    assert plain.spans == ((5, 9),) * 3  # positions 5 to 8 predict tokens 6 to 9
    with_bos = read(str(path), bos_tokenizer, protocol="wikitext2-llamacpp")
    texts = [bos_tokenizer.decode(t) for t in with_bos.tokens]
    assert texts == ["<s>012345678", "<s>012345678", "<s>012345678"]
    assert with_bos.protocol["bos"] == "every window"


def test_the_named_lengths_score_what_llama_cpp_and_papers_score(
    tmp_path: Path, tokenizer: Any
) -> None:
    path = tmp_path / "test.txt"
    path.write_text("0123456789" * 500, encoding="utf-8")
    llama = read_text(TextChoice(str(path), "wikitext2-llamacpp"), tokenizer)
    assert (llama.protocol["name"], llama.spans[0]) == ("wikitext2-llamacpp", (256, 511))
    papers = read_text(TextChoice(str(path), "wikitext2-2048"), tokenizer)
    assert (papers.protocol["name"], papers.spans[0]) == ("wikitext2-2048", (0, 2047))


def test_the_harness_scores_every_token_of_a_page_once(tmp_path: Path, tokenizer: Any) -> None:
    pages = [" = A = \n" + "b c " * 6, "short"]
    source = jsonl(tmp_path, *(("", page) for page in pages))
    found = read(source, tokenizer, protocol="wikitext-lmeval")
    assert found.clusters == (0, 0, 0, 0, 1)
    assert [d.bytes for d in found.documents] == [len(page.encode()) for page in pages]
    assert [d.words for d in found.documents] == [17, 1]
    for document, text in ((0, " = A =\n" + "b c " * 6), (1, "short")):
        scored = [
            tokenizer.decode(found.tokens[w, a + 1 : b + 1])
            for w, (a, b) in enumerate(found.spans)
            if found.clusters[w] == document
        ]
        assert "".join(scored) == text
    assert found.tokens[0, 0] == tokenizer.bos_token_id
    assert found.protocol["name"] == "wikitext-lmeval"


def test_the_shipped_text_has_domains(tokenizer: Any) -> None:
    found = read_text(TextChoice(), tokenizer)
    again = read_text(TextChoice("smoke"), tokenizer)
    assert torch.equal(found.tokens, again.tokens)
    assert found.protocol["text"] == "smoke"
    assert found.protocol["name"] == "qk@1"
    assert len(found.documents) >= 30
    assert len({document.domain for document in found.documents}) >= 8
    records = [json.loads(line) for line in SMOKE.read_text(encoding="utf-8").splitlines()]
    assert all(record["domain"] for record in records)


def test_windows_are_no_longer_than_the_context(tokenizer: Any) -> None:
    found = read_text(TextChoice(), tokenizer, context=64)
    assert found.inputs.shape[1] == 64
    assert found.protocol["name"] == "qk@1/64"


def test_the_hash_is_that_of_the_tokens(tmp_path: Path, tokenizer: Any) -> None:
    def hashes(length: int, text: str) -> tuple[str, str]:
        protocol = read(jsonl(tmp_path, ("a", text)), tokenizer, length).protocol
        return protocol["tokens_sha256"], protocol["text_sha256"]

    one, again, other = hashes(10, "abcd" * 9), hashes(10, "abcd" * 9), hashes(10, "abce" * 9)
    assert one == again
    assert one[0] != other[0]
    assert one[1] != other[1]
    assert hashes(5, "abcd" * 9)[1] == one[1]
    assert hashes(5, "abcd" * 9)[0] != one[0]


def test_the_vocabulary_s_hash_is_that_of_its_meaning(tokenizer: Any, bos_tokenizer: Any) -> None:
    plain = vocabulary_hash(tokenizer)
    assert vocabulary_hash(bos_tokenizer) == plain
    tokenizer.add_tokens(["<new>"])
    assert vocabulary_hash(tokenizer) != plain


def test_no_path_of_the_machine_is_kept(tmp_path: Path, tokenizer: Any) -> None:
    found = read(jsonl(tmp_path, ("a", "abc" * 100)), tokenizer)
    assert str(tmp_path) not in json.dumps(dict(found.protocol)) + str(found.documents)


@pytest.mark.parametrize(
    ("length", "choice", "says"),
    [
        (1, {}, "contain no scored token"),
        (8, {"windows": 0}, "contain no scored token"),
        (999, {"windows": 1}, "999"),
        (8, {"protocol": "qk@2"}, "unknown protocol `qk@2`"),
    ],
)
def test_windows_that_cannot_be_are_refused(
    tmp_path: Path, tokenizer: Any, length: int, choice: dict[str, Any], says: str
) -> None:
    text = tmp_path / "short.txt"
    text.write_text("few words", encoding="utf-8")
    with pytest.raises(InputError, match=says) as caught:
        read(str(text), tokenizer, length, **choice)
    assert caught.value.hint
