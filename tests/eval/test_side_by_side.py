import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from quantkit.calibration.tokens import load_tokenizer
from quantkit.core.errors import RefusedError
from quantkit.eval.scoring import Head
from quantkit.eval.side_by_side import evaluate_models, evaluate_together, read_reference
from quantkit.eval.text import EvaluationText, TextChoice
from quantkit.eval.walking import ScoredModel
from quantkit.eval.wikitext import detokenize
from quantkit.eval.windows import read_text
from quantkit.model.batches import Batches
from quantkit.model.embedded_model import FOLDER, HELDOUT
from quantkit.model.open import open_model
from quantkit.results.paired import distinguishable
from quantkit.results.schema import EvalResult

LENGTH, WINDOWS = 48, 6


@pytest.fixture
def text(tiny_checkpoint: Callable[..., Path]) -> EvaluationText:
    choice = TextChoice(sequence_length=LENGTH, windows=WINDOWS)
    return read_text(choice, load_tokenizer(tiny_checkpoint()))


@lru_cache(maxsize=2)
def plain_model(folder: Path) -> tuple[Any, int]:
    """The model as transformers loads it, and how many tokens its tokenizer knows."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    return model, max(AutoTokenizer.from_pretrained(folder).get_vocab().values()) + 1


def log_probs(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    """What transformers predicts after each of `ids` (length,), with the head's product in fp64."""
    model, known = plain_model(folder)
    taken: list[torch.Tensor] = []
    head = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, arguments: taken.append(arguments[0][0]))
    with torch.no_grad():
        model(ids[None], use_cache=False)
    hook.remove()
    predicted: torch.Tensor = taken[0].double() @ head.weight.double().T
    return predicted[:, :known].log_softmax(-1)


def nll(folder: Path, ids: torch.Tensor, scored: int) -> torch.Tensor:
    """-ln p of the last `scored` of `ids`, as anybody would write it down."""
    predicted = log_probs(folder, ids)[:-1]
    return -predicted.gather(1, ids[1:, None])[-scored:, 0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_equals_the_straightforward_computation(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText, family: str, dtype: str
) -> None:
    folder = tiny_checkpoint(family, dtype=dtype)
    other = tiny_checkpoint(family, dtype=dtype, seed=1)
    p, q = (torch.stack([log_probs(f, ids)[:-1] for ids in text.tokens]) for f in (folder, other))
    expected = [math.exp(-x.gather(2, text.tokens[:, 1:, None]).mean().item()) for x in (p, q)]
    reference = read_reference(open_model(folder), text)
    found = evaluate_models(open_model(other), text, reference)
    assert found.reference_perplexity
    assert found.kl
    assert found.reference_perplexity.value == pytest.approx(expected[0], rel=1e-4)
    assert found.perplexity.value == pytest.approx(expected[1], rel=1e-4)
    kl = (p.exp() * (p - q)).sum(-1)
    assert found.kl.mean == pytest.approx(kl.mean().item(), rel=1e-3)
    assert found.documents.sum_kl_nats == pytest.approx(kl.sum(-1).tolist(), rel=1e-2)
    assert found.kl.reverse_mean == pytest.approx(
        (q.exp() * (q - p)).sum(-1).mean().item(), rel=1e-3
    )


def pages(folder: Path) -> Path:
    """Pages of made WikiText."""
    texts = [
        f" = Page {i} = \n \n The lake @,@ {i} @-@ fold ( as told ) , is ' deep ' ; it 's so \n"
        * (i + 1)
        for i in range(12)
    ]
    path = folder / "pages.jsonl"
    path.write_text("".join(json.dumps({"page": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def sequences(protocol: str, path: Path, folder: Path, length: int) -> list[tuple[list[int], int]]:
    """Token ids and how many of the last ones count, written out by the published rules."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [json.loads(line)["page"] for line in path.read_text(encoding="utf-8").splitlines()]
    if protocol == "wikitext-lmeval":
        found = []
        for page in texts:
            ids = tokenizer(detokenize(page), add_special_tokens=False)["input_ids"]
            done = 0
            while done < len(ids):
                count = min(length, len(ids) - done)
                end = done + count
                before = [tokenizer.bos_token_id, *ids][max(0, end - length) : done + 1]
                found.append(([*before, *ids[done:end]], count))
                done = end
        return found
    if protocol == "qk@1":
        starts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        joined: list[int] = []
        found = []
        for ids in starts:
            joined += ids
            if len(joined) >= length:
                found.append(([tokenizer.bos_token_id, *joined[:length]], length))
                joined = []
            else:
                joined.append(tokenizer.eos_token_id)
        return found
    between = "" if protocol == "wikitext2-llamacpp" else "\n\n"
    ids = tokenizer(between.join(texts))["input_ids"]
    windows = [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]
    scored = length // 2 - 1 if protocol == "wikitext2-llamacpp" else length - 1
    return [(window, scored) for window in windows]


# Kernels round a bf16 product by its shape, and transformers computes other batches than quantkit:
# on a processor with AMX the same model differs from itself by 1.3e-4.
CLOSE = {"float32": 2e-5, "bfloat16": 5e-4}


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize(
    "protocol", ["qk@1", "wikitext2-2048", "wikitext2-llamacpp", "wikitext-lmeval"]
)
def test_perplexity_is_that_of_transformers_under_each_protocol(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, protocol: str, dtype: str
) -> None:
    folder, length = tiny_checkpoint(dtype=dtype), 64
    path = pages(tmp_path)
    expected = torch.cat(
        [
            nll(folder, torch.tensor(ids), scored)
            for ids, scored in sequences(protocol, path, folder, length)
        ]
    )
    choice = TextChoice(str(path), protocol, sequence_length=length)
    text = read_text(choice, load_tokenizer(folder))
    found = evaluate_models(open_model(folder), text)
    assert found.tokens == len(expected)
    mean, close = expected.mean().item(), CLOSE[dtype]
    assert found.perplexity.value == pytest.approx(math.exp(mean), rel=close)
    if protocol == "wikitext-lmeval":
        raw = [json.loads(line)["page"] for line in path.read_text().splitlines()]
        words = sum(len(re.split(r"\s+", page)) for page in raw)
        assert found.perplexity.word == pytest.approx(
            math.exp(expected.sum().item() / words), rel=1e-3
        )
        size = sum(len(page.encode()) for page in raw)
        bits = expected.sum().item() / size / math.log(2)
        assert found.perplexity.bits_per_byte == pytest.approx(bits, rel=close)


@pytest.mark.skipif(not HELDOUT.exists(), reason="the embedded model is not there")
def test_the_embedded_model_has_the_perplexity_that_transformers_gives_it() -> None:
    choice = TextChoice(str(HELDOUT), sequence_length=256, windows=4)
    text = read_text(choice, load_tokenizer(FOLDER))
    found = evaluate_models(open_model(FOLDER), text)
    expected = torch.cat([nll(FOLDER, ids, 256) for ids in text.tokens]).mean().item()
    assert found.perplexity.value == pytest.approx(math.exp(expected), rel=CLOSE["bfloat16"])


def test_a_model_beside_itself(tiny_checkpoint: Callable[..., Path], text: EvaluationText) -> None:
    for dtype, floor in (("float32", 1e-9), ("bfloat16", 1e-3)):
        folder = tiny_checkpoint(dtype=dtype)
        found, _ = evaluate_together(open_model(folder), open_model(folder), text)
        assert found.kl
        assert found.kl.max == 0
        assert found.top1_agreement == 1
        assert found.perplexity.log_ratio == 0
        assert found.kl.floor_mean is not None
        assert 0 <= found.kl.floor_mean < floor
        assert found.block_relative_error == [0, 0]
        assert distinguishable(found) is False


def test_the_floor_of_bf16_counts_other_kernels(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    floors = {
        dtype: read_reference(open_model(tiny_checkpoint(dtype=dtype)), text).floor
        for dtype in ("float32", "bfloat16")
    }
    assert floors["float32"] is not None
    assert floors["bfloat16"] is not None
    assert floors["bfloat16"].mean() > 100 * floors["float32"].mean()


def test_lock_step_gives_the_figures_of_one_after_the_other(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    first, second = tiny_checkpoint(), tiny_checkpoint(seed=1)
    found, _ = evaluate_together(open_model(second), open_model(first), text)
    apart = evaluate_models(open_model(second), text, read_reference(open_model(first), text))
    assert found.kl == apart.kl
    assert found.perplexity == apart.perplexity
    ids = text.inputs
    h_q, h_p = (open_model(f).hidden_states(ids).float() for f in (second, first))
    error = ((h_q - h_p).square().sum() / h_p.square().sum()).item()
    assert found.block_relative_error[-1] == pytest.approx(error, rel=1e-4)
    assert len(found.block_relative_error) == 2
    assert apart.block_relative_error == []


def test_models_of_different_depth_are_compared_without_blocks(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    shallow = open_model(tiny_checkpoint(num_hidden_layers=1))
    found, _ = evaluate_together(shallow, open_model(tiny_checkpoint()), text)
    assert found.kl is not None
    assert found.kl.mean is not None
    assert found.kl.mean > 0
    assert found.block_relative_error == []


def test_the_result_says_what_was_measured(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    model, original = (open_model(tiny_checkpoint(dtype="bfloat16", seed=s)) for s in (1, 0))
    result, _ = evaluate_together(model, original, text)
    found = result.to_dict()
    assert EvalResult.model_validate_json(json.dumps(found, allow_nan=False)) == result
    assert found["schema"] == "quantkit.eval/1"
    assert found["tokens"] == WINDOWS * LENGTH
    assert found["protocol"]["dtype"] == found["protocol"]["reference_dtype"] == "bfloat16"
    assert found["protocol"]["sequence_length"] == LENGTH
    assert found["protocol"]["batch"] == WINDOWS
    assert {"mean", "standard_error", "median", "p99", "max"} <= set(found["kl"])
    measured = {name for name, value in found["kl"].items() if value is not None}
    assert set(found["kl"]) - measured == {
        "lower_bound", "upper_bound", "sampling_standard_error"
    }  # fmt: skip
    assert found["documents"]["n"] == [LENGTH] * WINDOWS
    assert sum(found["documents"]["sum_kl_nats"]) == pytest.approx(
        found["kl"]["mean"] * found["tokens"]
    )
    assert set(found["kl"]["by_domain"]) == set(found["documents"]["domain"])
    assert 0 < found["detectable"]["kl_relative"] < 1
    low, high = found["kl"]["ci95"]
    assert low < found["kl"]["mean"] < high


def test_order_of_the_windows_changes_nothing(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    order = [4, 2, 0, 5, 1, 3]
    moved = replace(
        text,
        tokens=text.tokens[order],
        spans=tuple(text.spans[i] for i in order),
        documents=tuple(text.documents[i] for i in order),
    )

    def score(chosen: EvaluationText) -> dict[str, Any]:
        model, original = (open_model(tiny_checkpoint(seed=seed)) for seed in (1, 0))
        found = evaluate_together(model, original, chosen)[0].to_dict()
        exact = ("mean", "standard_error", "median", "p99", "max", "worst_percent_share")
        return {name: found["kl"][name] for name in exact} | {"ppl": found["perplexity"]["value"]}

    assert score(moved) == pytest.approx(score(text), rel=1e-6)


class Broken:
    """A model whose head gives what is not finite at some rows."""

    def __init__(self, sound: ScoredModel) -> None:
        self.sound = sound
        self.config, self.dtype, self.device = sound.config, sound.dtype, sound.device

    def walk(self, *input_ids: torch.Tensor, **options: Any) -> Iterator[Batches]:
        return self.sound.walk(*input_ids, **options)

    def head(self) -> Head:
        return BrokenHead(self.sound.head())


class BrokenHead:
    def __init__(self, sound: Head) -> None:
        self.sound = sound

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return next(self.tiles(rows, 1 << 30, 1 << 30))

    def is_product(self, rows: torch.Tensor) -> bool:
        return self.sound.is_product(rows)

    def tiles(self, rows: torch.Tensor, vocabulary: int, width: int) -> Iterator[torch.Tensor]:
        for logits in self.sound.tiles(rows, vocabulary, width):
            logits[3] = torch.inf
            yield logits


def test_logits_that_are_not_finite_make_it_invalid_and_are_counted(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    reference = read_reference(open_model(tiny_checkpoint()), text)
    found = evaluate_models(Broken(open_model(tiny_checkpoint())), text, reference).to_dict()
    assert found["status"] == "invalid"
    assert found["perplexity"]["value"] is None
    assert found["kl"]["mean"] is None
    assert found["kl"]["ci95"] is None
    assert found["documents"]["sum_kl_nats"] == []
    assert f"{WINDOWS} of {WINDOWS * LENGTH} positions" in found["notes"][-1]
    assert "position 3 of window 0" in found["notes"][-1]
    json.dumps(found, allow_nan=False)


def test_other_vocabularies_are_refused(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    reference = read_reference(open_model(tiny_checkpoint()), text)
    foreign = replace(reference, vocabulary_sha256="other")
    with pytest.raises(RefusedError, match="different vocabularies") as caught:
        evaluate_models(open_model(tiny_checkpoint()), text, foreign)
    assert caught.value.hint
    small = open_model(tiny_checkpoint(vocab_size=200))
    with pytest.raises(RefusedError, match="has 200 output tokens, but its tokenizer has 245"):
        evaluate_models(small, replace(text, tokens=text.tokens.clamp(max=199)))


def test_padding_of_the_vocabulary_is_no_difference(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    """Rows beyond the tokenizer's are junk on both sides; the sizes may differ as well."""
    padded, plain = tiny_checkpoint(vocab_size=320), tiny_checkpoint()
    found, _ = evaluate_together(open_model(padded), open_model(plain), text)
    assert found.status == "valid"
    assert found.kl is not None


def test_progress_reaches_the_end_of_both_parts(
    tiny_checkpoint: Callable[..., Path], text: EvaluationText
) -> None:
    seen: list[tuple[str, int, int]] = []
    model = open_model(tiny_checkpoint())
    evaluate_models(model, text, report=lambda p: seen.append((p.stage, p.done, p.total)))
    assert seen[-1] == ("scores", WINDOWS, WINDOWS)
    assert len({stage for stage, _, _ in seen}) == 2
