import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from quantkit.calibration.tokens import load_tokenizer
from quantkit.core.errors import RefusedError
from quantkit.eval.session import Evaluation, ScoredModel, evaluate_models, read_reference
from quantkit.eval.text import EvaluationText, read_text
from quantkit.model.embedded_model import FOLDER, HELDOUT
from quantkit.model.open import open_model

LENGTH, WINDOWS = 48, 6


@pytest.fixture
def text(tiny_checkpoint: Callable[..., Path]) -> EvaluationText:
    return read_text(None, load_tokenizer(tiny_checkpoint()), LENGTH, WINDOWS)


@torch.no_grad()
def straightforward(folder: Path, tokens: torch.Tensor, other: Path) -> dict[str, float]:
    """Perplexity of `folder`, and `other`'s KL from it, as anybody would write it down."""
    from transformers import AutoModelForCausalLM

    log_probs = []
    for path in (folder, other):
        model = AutoModelForCausalLM.from_pretrained(path, dtype="auto").eval()
        logits = [model(window[None], use_cache=False).logits[0].double() for window in tokens]
        log_probs.append(torch.stack(logits).log_softmax(-1))
    p, q = (x[:, :-1] for x in log_probs)
    nll = -p.gather(2, tokens[:, 1:, None]).mean().item()
    return {"perplexity": math.exp(nll), "kl": (p.exp() * (p - q)).sum(-1).mean().item()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_equals_the_straightforward_computation(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText, family: str, dtype: str
) -> None:
    folder = tiny_checkpoint(family, dtype=dtype)
    other = tiny_checkpoint(family, dtype=dtype, seed=1)
    expected = straightforward(folder, text.tokens, other)
    reference = read_reference(open_model(folder), text)
    found = evaluate_models(open_model(other), text, reference).to_dict()
    perplexity = evaluate_models(open_model(folder), text).to_dict()["perplexity"]["value"]
    assert perplexity == pytest.approx(expected["perplexity"], rel=1e-4)
    assert found["reference_perplexity"]["value"] == pytest.approx(perplexity, rel=1e-6)
    assert found["kl"]["mean"] == pytest.approx(expected["kl"], rel=1e-3)


@pytest.mark.skipif(not HELDOUT.exists(), reason="the embedded model is not there")
def test_the_embedded_model_has_the_perplexity_that_transformers_gives_it() -> None:
    text = read_text(str(HELDOUT), load_tokenizer(FOLDER), 256, 4)
    found = evaluate_models(open_model(FOLDER), text).to_dict()
    expected = straightforward(FOLDER, text.tokens, FOLDER)
    assert found["perplexity"]["value"] == pytest.approx(expected["perplexity"], rel=1e-4)


def test_a_model_beside_itself(tiny_checkpoint: Callable[..., Path], text: EvaluationText) -> None:
    for dtype, floor in (("float32", 1e-9), ("bfloat16", 1e-3)):
        folder = tiny_checkpoint(dtype=dtype)
        found = evaluate_models(
            open_model(folder), text, read_reference(open_model(folder), text)
        ).to_dict()
        assert found["kl"]["max"] == 0
        assert found["top1_agreement"] == 1
        assert found["perplexity"]["log_ratio"] == 0
        assert 0 <= found["kl"]["noise_floor"] < floor


def test_the_result_says_what_was_measured(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    folder = tiny_checkpoint(dtype="bfloat16")
    found = evaluate_models(open_model(folder), text).to_dict()
    assert set(found) == {
        "status", "perplexity", "tokens", "windows", "protocol", "notes"
    }  # fmt: skip
    assert found["tokens"] == WINDOWS * (LENGTH - 1)
    assert found["protocol"]["dtype"] == "bfloat16"
    assert found["protocol"]["sequence_length"] == LENGTH
    assert found["protocol"]["batch"] == WINDOWS
    json.dumps(found, allow_nan=False)


def test_order_of_the_windows_changes_nothing(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    order = [4, 2, 0, 5, 1, 3]
    moved = replace(
        text, tokens=text.tokens[order], clusters=tuple(text.clusters[i] for i in order)
    )

    def score(chosen: EvaluationText) -> Evaluation:
        reference = read_reference(open_model(tiny_checkpoint()), chosen)
        return evaluate_models(open_model(tiny_checkpoint(seed=1)), chosen, reference)

    plain, other = score(text).to_dict(), score(moved).to_dict()
    del plain["kl"]["noise_floor"], other["kl"]["noise_floor"]  # of the first windows
    assert other["kl"] == pytest.approx(plain["kl"], rel=1e-6)
    assert other["perplexity"] == pytest.approx(plain["perplexity"], rel=1e-6)


class Broken:
    """A model whose head gives what is not finite at some rows."""

    def __init__(self, sound: ScoredModel) -> None:
        self.sound = sound
        self.config, self.dtype = sound.config, sound.dtype

    def hidden_states(self, input_ids: torch.Tensor, *report: Any) -> torch.Tensor:
        return self.sound.hidden_states(input_ids, *report)

    def head(self) -> Callable[[torch.Tensor], torch.Tensor]:
        head = self.sound.head()

        def logits(rows: torch.Tensor) -> torch.Tensor:
            out = head(rows)
            out[3] = torch.inf
            return out

        return logits


def test_logits_that_are_not_finite_make_it_invalid_and_are_counted(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    reference = read_reference(open_model(tiny_checkpoint()), text)
    found = evaluate_models(Broken(open_model(tiny_checkpoint())), text, reference).to_dict()
    assert found["status"] == "invalid"
    assert found["perplexity"]["value"] is None
    assert found["kl"]["mean"] is None
    assert f"{WINDOWS} of {WINDOWS * (LENGTH - 1)} positions" in found["notes"][-1]
    assert "position 3 of window 0" in found["notes"][-1]
    json.dumps(found, allow_nan=False)


def test_other_vocabularies_are_refused(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    reference = read_reference(open_model(tiny_checkpoint(vocab_size=512)), text)
    with pytest.raises(RefusedError, match="256 tokens and the reference 512") as caught:
        evaluate_models(open_model(tiny_checkpoint()), text, reference)
    assert caught.value.hint


def test_progress_reaches_the_end_of_both_parts(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    seen: list[tuple[str, int, int]] = []
    evaluate_models(
        open_model(tiny_checkpoint()), text, None, lambda p: seen.append((p.stage, p.done, p.total))
    )
    assert seen[-1] == ("scores", WINDOWS, WINDOWS)
    assert len({stage for stage, _, _ in seen}) == 2
