"""The embedded model: its shapes, its tokenizer, its distance from a trigram model; its text."""

# ruff: noqa: RUF001 (the sign of multiplication is meant)
import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quantkit.model.embedded_model import FOLDER, HELDOUT

ROOT = Path(__file__).resolve().parents[2]
# After the installed packages: tests see the installed quantkit, and `tools` of the checkout.
sys.path.append(str(ROOT))

from tools.embedded.corpus import read_documents, training_documents  # noqa: E402
from tools.embedded.generators import HELD_OUT, KINDS, TRAINING, Document, documents  # noqa: E402

FIRST_DOCUMENTS = "923ceb9cdbf51a7ac1239ae044c920a3a7223bbc701261c45495847d7d7bb05c"


def fingerprint(n_documents: int) -> str:
    """The hash of the first documents of every kind, of a stream of its own."""
    digest = hashlib.sha256()
    for kind in (None, *KINDS):
        for document in islice(documents(5, kind), n_documents):
            digest.update(json.dumps([document.kind, document.content]).encode())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def slice_ids(tokenizer: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Every sixth window of the held-out text."""
    from tools.embedded.measure import token_windows

    return token_windows(tokenizer, read_documents(HELDOUT), 10**6)[::6]


def perplexity(model: Any, ids: np.ndarray[Any, np.dtype[np.int64]]) -> float:
    from tools.embedded.measure import log_probabilities

    predicted = log_probabilities(model, ids)
    return float((-predicted.gather(-1, torch.tensor(ids[:, 1:, None]))[:, 1:].mean()).exp())


def test_streams_are_the_same_everywhere() -> None:
    assert fingerprint(200) == FIRST_DOCUMENTS


def test_streams_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from tools.embedded.generators import document\n"
        "print(repr([document(9, i).content for i in range(60)]))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_documents_hardly_ever_repeat(kind: str) -> None:
    texts = [json.dumps(document.content) for document in islice(documents(6, kind), 400)]
    assert len(set(texts)) >= 398


def test_generated_code_is_code() -> None:
    from tools.embedded.dice import Dice
    from tools.embedded.source_code import snippet

    languages = set()
    for index in range(200):
        language, code = snippet(Dice(f"test {index}"))
        languages.add(language)
        if language == "python":
            compile(code, "generated", "exec")
        for left, right in ("()", "[]", "{}"):
            assert code.count(left) == code.count(right), code
    assert languages == {"python", "javascript", "c", "sql"}


def test_generated_sums_are_right() -> None:
    checked = 0
    for document in islice(documents(7, "mathematics"), 200):
        assert isinstance(document.content, str)
        for line in document.content.splitlines():
            left, sign, right = line.partition(" = ")
            if sign and set(left) <= set("0123456789 +×") and right.isdigit():
                assert eval(left.replace("×", "*")) == int(right), line
                checked += 1
    assert checked > 100


def test_held_out_text_is_what_the_script_writes(tmp_path: Path) -> None:
    from tools.embedded.train import write_held_out

    write_held_out(tmp_path / "heldout.jsonl")
    assert (tmp_path / "heldout.jsonl").read_bytes() == HELDOUT.read_bytes()
    assert HELDOUT.stat().st_size <= 150_000
    assert HELD_OUT != TRAINING


def test_held_out_text_was_not_trained_on() -> None:
    def keys(texts: Iterable[Document]) -> set[str]:
        return {json.dumps(document.content) for document in texts}

    known = keys(read_documents(HELDOUT))
    assert len(known) > 200
    assert {document.kind for document in read_documents(HELDOUT)} == set(KINDS)
    assert not known & keys(islice(training_documents(), 5000))


def test_weights_are_small_and_readable() -> None:
    weights = FOLDER / "model.safetensors"
    assert weights.stat().st_size <= 12_000_000
    assert weights.stat().st_mode & stat.S_IROTH


def test_shapes_are_multiples_of_128(model: Any) -> None:
    config = json.loads((FOLDER / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["num_hidden_layers"] >= 6
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["max_position_embeddings"] >= 512
    assert not config["tie_word_embeddings"]
    assert model.lm_head.weight.data_ptr() != model.model.embed_tokens.weight.data_ptr()
    widths = {width for parameter in model.parameters() for width in parameter.shape}
    assert all(width % 128 == 0 for width in widths), widths


@pytest.mark.parametrize(
    "text",
    ["Plain words.", "  two  spaces\n\n\ttab", "7.25 × 10³ → €", "日本語 и по-русски", "🙂\r\n"],
)
def test_tokenizer_round_trips(tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_chat_template(tokenizer: Any) -> None:
    turns = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    text = tokenizer.apply_chat_template(turns, tokenize=False)
    assert text == "<|bos|><|user|>2 + 2?<|eos|><|assistant|>4<|eos|>"
    prompt = tokenizer.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|bos|><|user|>2 + 2?<|eos|><|assistant|>"


@pytest.mark.long
def test_perplexity_is_far_below_a_trigram_models(
    model: Any, tokenizer: Any, slice_ids: np.ndarray[Any, np.dtype[np.int64]]
) -> None:
    from tools.embedded.measure import token_windows
    from tools.embedded.trigram import Trigram

    ids = token_windows(tokenizer, training_documents(), 2000)
    trigram = float(np.exp(Trigram(ids, len(tokenizer)).nats(slice_ids).mean()))
    assert perplexity(model, slice_ids) < 2.5
    assert trigram > 5.0


@pytest.mark.long
def test_three_bits_cost_clearly_more_than_four(
    model: Any, slice_ids: np.ndarray[Any, np.dtype[np.int64]]
) -> None:
    from tools.embedded.measure import rounded

    plain, four, three = (
        perplexity(each, slice_ids) for each in (model, rounded(model, 4), rounded(model, 3))
    )
    assert plain < four < three
    assert three - plain > 2.5 * (four - plain)


def test_trigram_probabilities_sum_to_one() -> None:
    from tools.embedded.trigram import Trigram

    rng = np.random.default_rng(0)
    baseline = Trigram(rng.integers(0, 12, (30, 40)) // rng.integers(1, 4, (30, 40)), 16)
    for a, b in ((1, 2), (0, 11), (15, 15)):
        contexts = np.array([[a, b, token] for token in range(16)])
        assert np.exp(-baseline.nats(contexts)).sum() == pytest.approx(1.0)
