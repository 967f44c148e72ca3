import hashlib
import struct
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from quantkit.calibration import chat
from quantkit.calibration.record import Document
from quantkit.calibration.text import read_documents
from quantkit.calibration.tokens import load_tokenizer, tokenize
from quantkit.core.errors import InputError, RefusedError

BOS, END, START = 256, 257, 258
CHATML = "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
BOS_CHAT = "{{ bos_token }}" + CHATML
PROMPT = "{% if add_generation_prompt %}PROMPT{% endif %}"
TURNS = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"})
CHAT = Document(None, TURNS, "chat")


@cache
def byte_tokenizer(
    *, bos: bool = False, eos: bool = True, template: str | None = None
) -> PreTrainedTokenizerFast:
    """One token per byte (ids 0 to 255), special tokens after them; decodes to the same text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<|bos|>", "<|end|>", "<|start|>"])
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", BOS)]
        )
    special = {"bos_token": "<|bos|>"} | ({"eos_token": "<|end|>"} if eos else {})
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, **special)
    tokenizer.chat_template = template
    return tokenizer


def texts(*contents: str) -> list[Document]:
    return [Document(content, None, f"text {i}") for i, content in enumerate(contents)]


def stream(tokenizer: Any, contents: list[str]) -> list[int]:
    """The slow twin: all documents' ids, EOS after each that is not empty."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids = (tokenizer(content, add_special_tokens=False)["input_ids"] for content in contents)
    return [i for document in ids if document for i in [*document, *end]]


@given(
    contents=st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=12),
    samples=st.integers(1, 8),
    length=st.integers(2, 12),
    bos=st.booleans(),
    eos=st.booleans(),
)
def test_windows_are_the_documents_in_order(
    contents: list[str], samples: int, length: int, bos: bool, eos: bool
) -> None:
    tokenizer = byte_tokenizer(bos=bos, eos=eos)
    expected = stream(tokenizer, contents)
    room = length - bos
    if len(expected) < room:
        with pytest.raises(InputError, match="a sample needs"):
            tokenize(texts(*contents), tokenizer, samples, length, "texts")
        return
    found = tokenize(texts(*contents), tokenizer, samples, length, "texts")
    windows, ledger = found.input_ids, found.ledger
    assert windows.dtype == torch.int64
    assert windows.shape == (min(samples, len(expected) // room), length)
    assert (ledger.samples, ledger.sequence_length) == tuple(windows.shape)
    assert ledger.tokens == windows.numel()
    if bos:
        assert (windows[:, 0] == BOS).all()
    assert windows[:, int(bos) :].flatten().tolist() == expected[: len(windows) * room]
    dropped = sum(ledger.documents_dropped.values())
    assert ledger.documents_read == ledger.documents_used + dropped
    assert ledger.documents_truncated <= 1 <= ledger.documents_used
    fewer = tokenize(texts(*contents), tokenizer, 1, length, "texts")
    assert torch.equal(fewer.input_ids, windows[:1]), "fewer samples are a prefix of more"
    again = tokenize(texts(*contents), tokenizer, samples, length, "texts")
    assert again.ledger == ledger


def test_ledger_counts() -> None:
    tokenizer = byte_tokenizer()
    documents = texts("abc", "", "defgh", "ij", "klm")  # 4 + 0 + 6 + 3 + 4 ids with EOS
    ledger = tokenize(documents, tokenizer, 9, 5, "here").ledger
    assert (ledger.documents_read, ledger.documents_used) == (5, 4)
    assert ledger.documents_dropped == {"empty": 1}
    assert ledger.documents_truncated == 1, "klm has two of its ids in the last window"
    ledger = tokenize(documents, tokenizer, 9, 10, "here").ledger
    assert ledger.documents_dropped == {"empty": 1, "after the last full sample": 2}
    assert (ledger.documents_used, ledger.documents_truncated) == (2, 0)
    assert ledger.source == "here"


def test_samples_know_the_document_they_start_in() -> None:
    documents = texts("abc", "", "defgh", "ij", "klm")  # 0 to 3, 4 to 9, 10 to 12, 13 to 16
    assert tokenize(documents, byte_tokenizer(), 9, 3, "x").documents == (0, 0, 1, 1, 2)
    assert tokenize(documents, byte_tokenizer(bos=True), 2, 5, "x").documents == (0, 1)


def test_hash_is_that_of_shape_and_ids() -> None:
    found = tokenize(texts("abcdefgh"), byte_tokenizer(), 2, 4, "here")
    numbers = [2, 4, *found.input_ids.flatten().tolist()]
    assert found.ledger.sha256 == hashlib.sha256(struct.pack("<10q", *numbers)).hexdigest()
    reshaped = tokenize(texts("abcdefgh"), byte_tokenizer(), 1, 8, "here")
    assert torch.equal(reshaped.input_ids.flatten(), found.input_ids.flatten())
    assert found.ledger.sha256 != reshaped.ledger.sha256


def test_no_more_is_read_than_needed() -> None:
    def endless() -> Iterator[Document]:
        yield from texts("abcd", "efgh", "ijkl")
        raise AssertionError("read on")

    ledger = tokenize(endless(), byte_tokenizer(), 3, 5, "endless").ledger
    assert (ledger.documents_read, ledger.documents_truncated) == (3, 0)


def test_template_writes_conversations_with_all_turns() -> None:
    tokenizer = byte_tokenizer(template=CHATML + PROMPT)
    found = tokenize([CHAT, *texts("x")], tokenizer, 1, 29, "chat")
    # ChatML closes with EOS and a newline itself: none is added.
    expected = "<|start|>user\nHi<|end|>\n<|start|>assistant\nHello<|end|>\nx"
    assert tokenizer.decode(found.input_ids[0].tolist()) == expected
    assert found.input_ids[0, 0] == START
    assert found.ledger.chat_template_applied == 1


def test_bos_is_never_doubled() -> None:
    tokenizer = byte_tokenizer(bos=True, template=BOS_CHAT)
    assert tokenizer.apply_chat_template(list(TURNS), tokenize=False).startswith("<|bos|>")
    found = tokenize([CHAT] * 5, tokenizer, 6, 20, "chat")
    assert (found.input_ids[:, 0] == BOS).all()
    assert (found.input_ids == BOS).sum() == len(found.input_ids)


def test_no_bos_where_the_tokenizer_adds_none() -> None:
    tokenizer = byte_tokenizer(bos=False)
    assert tokenizer.bos_token_id == BOS
    assert BOS not in tokenize(texts("abcdefgh"), tokenizer, 2, 4, "x").input_ids


def test_no_template_means_plain_turns() -> None:
    tokenizer = byte_tokenizer()
    found = tokenize([CHAT], tokenizer, 1, 25, "chat")
    assert tokenizer.decode(found.input_ids[0].tolist()) == "user: Hi\nassistant: Hello"
    assert (found.ledger.chat_template_applied, found.ledger.chat_template_failed) == (0, 0)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{% for %}",
        "{{ messages[7].content.x.y }}",
        "{{ ''.__class__.__mro__ }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'x' * 1000000 }}",
        "{{ 1 / 0 }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{{ ('x' * 9000000000)|length }}",
        "{# " + "x" * 70_000 + " #}" + CHATML,
    ],
)
def test_failing_template_falls_back_and_is_counted(template: str) -> None:
    tokenizer = byte_tokenizer(template=template)
    found = tokenize([CHAT], tokenizer, 1, 25, "chat")
    assert tokenizer.decode(found.input_ids[0].tolist()) == "user: Hi\nassistant: Hello"
    assert (found.ledger.chat_template_applied, found.ledger.chat_template_failed) == (0, 1)


def test_template_fails_for_some_conversations_only() -> None:
    strict = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHATML
    )
    system = Document(None, ({"role": "system", "content": "Be brief."}, *TURNS), "system")
    ledger = tokenize([CHAT, system, CHAT], byte_tokenizer(template=strict), 99, 8, "chat").ledger
    assert (ledger.chat_template_applied, ledger.chat_template_failed) == (2, 1)


def test_tokens_do_not_depend_on_the_day() -> None:
    today = "{% if strftime_now is defined %}{{ strftime_now('%d %B %Y') }}.{% endif %}"
    dated = byte_tokenizer(template="\n" + today + CHATML)
    found = tokenize([CHAT], dated, 1, 24, "chat")
    assert dated.decode(found.input_ids[0].tolist()) == "\n01 January 2025.<|start|>user\nH"


def test_empty_conversation_is_dropped_whatever_the_template_says() -> None:
    empty = Document(None, ({"role": "user", "content": " "},), "empty")
    tokenizer = byte_tokenizer(template=CHATML)
    ledger = tokenize([empty, Document(None, (), "none"), CHAT], tokenizer, 1, 8, "x").ledger
    assert ledger.documents_dropped == {"empty": 2}


@pytest.mark.parametrize(("samples", "length"), [(0, 8), (1, 0), (-1, 8), (1, 1)])
def test_windows_without_room_for_text(samples: int, length: int) -> None:
    with pytest.raises(InputError, match="leave no room for text"):
        tokenize(texts("abc"), byte_tokenizer(bos=True), samples, length, "x")


def test_too_little_text_names_the_length_that_fits() -> None:
    with pytest.raises(InputError) as caught:
        tokenize(texts("abcdefg"), byte_tokenizer(bos=True), 4, 64, "x")
    assert caught.value.hint is not None
    assert "--sequence-length 9" in caught.value.hint
    tokenize(texts("abcdefg"), byte_tokenizer(bos=True), 4, 9, "x")


def test_default_text_calibrates_any_tokenizer() -> None:
    found = tokenize(read_documents("default"), byte_tokenizer(template=CHATML), 32, 512, "default")
    assert found.input_ids.shape == (32, 512)
    assert found.ledger.chat_template_applied > 0
    assert found.ledger.documents_dropped == {}


def test_panicking_tokenizer_is_an_error_that_names_the_document() -> None:
    core = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    with pytest.raises(InputError, match="text 1: the tokenizer failed"):
        tokenize(texts("a", "a" * 40 + "b"), tokenizer, 9, 9, "x")


# Loading


def test_saved_tokenizer_is_loaded(tmp_path: Path) -> None:
    saved = byte_tokenizer(bos=True, template=BOS_CHAT)
    saved.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.chat_template == BOS_CHAT
    ledgers = [tokenize([CHAT] * 3, t, 2, 16, "x").ledger for t in (saved, loaded)]
    assert ledgers[0] == ledgers[1]


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="contains no tokenizer") as caught:
        load_tokenizer(tmp_path)
    assert caught.value.hint is not None
    assert "tokenizer.json" in caught.value.hint


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": 3}', "[" * 2000])
def test_damaged_tokenizer(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"cannot read the tokenizer|returns no tokens"):
        load_tokenizer(tmp_path)


def test_tokenizer_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "own.py").write_text("raise SystemExit('was run')", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "unheard_of"}', encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}',
        encoding="utf-8",
    )
    with pytest.raises(RefusedError, match="is custom code") as caught:
        load_tokenizer(tmp_path)
    assert caught.value.exit_code == 4


def test_import_is_cheap() -> None:
    code = "import sys, quantkit.calibration.tokens; sys.exit('transformers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("template", [{"tool_use": CHATML}, ["no text"]])
def test_a_tokenizer_without_a_default_template_has_none(template: Any) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    assert chat.renderer(tokenizer) is None


def test_what_the_tokenizer_library_raises_names_the_text() -> None:
    class Failing:
        eos_token_id = None
        chat_template = None

        def __call__(self, *_: Any, **__: Any) -> Any:
            raise Exception("WordLevel error: Missing [UNK] token")  # noqa: TRY002 - as it does

    with pytest.raises(InputError, match="the tokenizer failed"):
        tokenize([CHAT], cast(Any, Failing()), 1, 8, "chat")


THREADED = """
import os, sys
from pathlib import Path
os.environ["TOKENIZERS_PARALLELISM"] = "true"
from transformers import AutoTokenizer
from quantkit.calibration.tokens import load_tokenizer
before = AutoTokenizer.from_pretrained(sys.argv[1])
before(["a text", "another one"] * 100)  # the library's threads are running now
for _ in range(2):
    load_tokenizer(Path(sys.argv[1]))
assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
"""


def test_a_tokenizer_whose_threads_are_running_is_tried_in_a_child(tmp_path: Path) -> None:
    """A forked child has none of these threads, and would wait for them."""
    byte_tokenizer(template="{{ messages }}").save_pretrained(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", THREADED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "forked" not in done.stderr
