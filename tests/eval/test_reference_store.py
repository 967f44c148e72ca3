import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from quantkit.calibration.tokens import load_tokenizer
from quantkit.checkpoint.reader import open_checkpoint
from quantkit.checkpoint.stored import Source
from quantkit.core.errors import InputError, IntegrityError, RefusedError
from quantkit.eval import stored_forms
from quantkit.eval.compare import stored_reference
from quantkit.eval.reference_store import (
    Form,
    is_store,
    read_store,
    store_key,
    write_store,
)
from quantkit.eval.side_by_side import evaluate_models, read_reference
from quantkit.eval.text import EvaluationText, TextChoice
from quantkit.eval.windows import read_text
from quantkit.model.open import open_model
from quantkit.pipeline.opening import open_folder
from quantkit.results.schema import EvalResult

LENGTH, WINDOWS = 64, 6


@pytest.fixture(autouse=True)
def few_tokens_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary of 245 would be kept in full."""
    monkeypatch.setattr(stored_forms, "KEPT", 24)


@pytest.fixture
def text(tiny_checkpoint: Callable[..., Path]) -> EvaluationText:
    choice = TextChoice(sequence_length=LENGTH, windows=WINDOWS)
    return read_text(choice, load_tokenizer(tiny_checkpoint()))


def store(folder: Path, text: EvaluationText, output: Path, form: Form) -> Path:
    model = open_model(folder)
    return write_store(output, read_reference(model, text), model, text, form)


def judged(folder: Path, text: EvaluationText, kept: Path) -> EvalResult:
    return evaluate_models(open_model(folder), text, read_store(kept, text))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "llama_tied", "gpt2", "gemma3"])
def test_hidden_states_give_the_same_figures_as_the_model(
    tiny_checkpoint: Callable[..., Path],
    text: EvaluationText,
    tmp_path: Path,
    family: str,
    dtype: str,
) -> None:
    original = tiny_checkpoint(family, dtype=dtype, shards=2)
    artifact = tiny_checkpoint(family, dtype=dtype, seed=1)
    direct = evaluate_models(open_model(artifact), text, read_reference(open_model(original), text))
    kept = store(original, text, tmp_path / "kept", "hidden")
    found = judged(artifact, text, kept)
    assert found.kl == direct.kl
    assert found.documents == direct.documents
    assert found.reference is not None
    assert found.reference.form == "hidden"
    names = open_checkpoint(kept).names
    assert not any("layers" in name or ".h." in name for name in names)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_small_form_is_within_its_stated_bounds(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText, tmp_path: Path, dtype: str
) -> None:
    original, artifact = (tiny_checkpoint(dtype=dtype, seed=seed) for seed in (0, 1))
    direct = evaluate_models(open_model(artifact), text, read_reference(open_model(original), text))
    found = judged(artifact, text, store(original, text, tmp_path / "kept", "topk"))
    assert found.kl is not None
    assert direct.kl is not None
    exact, estimate = direct.kl.mean, found.kl.mean
    assert exact is not None
    assert estimate is not None
    assert found.kl.lower_bound is not None
    assert found.kl.upper_bound is not None
    assert found.kl.lower_bound < exact < found.kl.upper_bound
    error = found.kl.sampling_standard_error
    assert error is not None
    assert 0 < error < 0.03 * exact
    assert abs(estimate - exact) < 4 * error
    assert found.kl.lower_bound < 0.98 * exact  # the bound alone would say too little
    assert found.kl.reverse_mean is None
    assert found.kl.floor_mean == direct.kl.floor_mean
    assert found.top1_agreement == direct.top1_agreement
    assert found.perplexity.log_ratio == pytest.approx(direct.perplexity.log_ratio)
    assert found.kl.by_confidence[0] == pytest.approx(direct.kl.by_confidence[0], rel=0.1)


def test_the_small_form_holds_no_weights_and_is_small(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText, tmp_path: Path
) -> None:
    kept = store(tiny_checkpoint(), text, tmp_path / "kept", "topk")
    names = open_checkpoint(kept).names
    assert {name.split(".")[0] for name in names} == {
        "floor", "ids", "log_p", "tail", "sample_ids", "sample_log_p", "nll"
    }  # fmt: skip
    size = (kept / "model.safetensors").stat().st_size
    # 2,116 bytes a token at 256 kept ones: 8 for each, 8 for each of 8 samples, tail and nll
    assert size < WINDOWS * LENGTH * (24 * 8 + 8 * 8 + 8) + 8000


def test_the_same_reference_gives_the_same_bytes(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText, tmp_path: Path
) -> None:
    sums = [
        (store(tiny_checkpoint(), text, tmp_path / name, "topk") / "SHA256SUMS").read_text()
        for name in ("one", "two")
    ]
    assert sums[0] == sums[1]


def test_a_sweep_pays_once(
    tiny_checkpoint: Callable[..., Path],
    text: EvaluationText,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(tiny_checkpoint())
    cache = tmp_path / "reference"
    first = stored_reference(open_folder(source), text, cache)
    monkeypatch.setattr("quantkit.eval.compare.read_reference", None)  # would be called in vain
    again = stored_reference(open_folder(source), text, cache)
    assert again.subject == first.subject
    assert again.subject.name == source.folder.name
    (kept,) = cache.iterdir()
    assert json.loads((kept / "index.json").read_text())["key"] == kept.name


def test_the_key_is_that_of_weights_tokens_protocol_and_dtype(text: EvaluationText) -> None:
    def key(weights: str = "w", dtype: str = "float32", **protocol: str) -> str:
        return store_key(weights, replace(text, protocol={**text.protocol, **protocol}), dtype)

    keys = [
        key(),
        key(weights="x"),
        key(dtype="bfloat16"),
        key(name="long@1"),
        key(tokens_sha256="u"),
        store_key("w", text, "float32", "topk"),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == key()


def test_another_text_or_protocol_is_refused(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText, tmp_path: Path
) -> None:
    kept = store(tiny_checkpoint(), text, tmp_path / "kept", "hidden")
    for name in ("name", "tokens_sha256"):
        other = replace(text, protocol={**text.protocol, name: "other"})
        with pytest.raises(InputError, match="belongs to another text") as caught:
            read_store(kept, other)
        assert caught.value.hint


def test_a_changed_file_is_found(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText, tmp_path: Path
) -> None:
    kept = store(tiny_checkpoint(), text, tmp_path / "kept", "hidden")
    weights = kept / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"model\.safetensors"):
        read_store(kept, text)


def test_a_store_without_samples_of_the_tail_is_refused(
    tiny_checkpoint: Callable[..., Path],
    text: EvaluationText,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = stored_forms.topk_tensors

    def without(*arguments: object) -> stored_forms.Writing:
        made = whole(*arguments)  # type: ignore[arg-type]  # handed on
        kept = [spec for spec in made.specs if not spec.name.startswith("sample")]
        rest = ((n, t) for n, t in made.tensors if not n.startswith("sample"))
        return stored_forms.Writing(kept, rest)

    monkeypatch.setattr("quantkit.eval.reference_store.topk_tensors", without)
    kept = store(tiny_checkpoint(), text, tmp_path / "kept", "topk")
    with pytest.raises(RefusedError, match="no samples of the tail"):
        read_store(kept, text)


def test_what_is_a_store(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText, tmp_path: Path
) -> None:
    assert is_store(store(tiny_checkpoint(), text, tmp_path / "kept", "topk"))
    assert not is_store(tiny_checkpoint())
    (tmp_path / "index.json").write_text('{"schema_version": "other/1"}')
    assert not is_store(tmp_path)
    (tmp_path / "index.json").write_text('{"schema_version": "quantkit.reference/1"}')
    with pytest.raises(InputError, match="no stored reference") as caught:
        read_store(tmp_path, text)
    assert caught.value.why
    assert "form" in caught.value.why
