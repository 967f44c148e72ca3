"""A model run block by block gives what transformers gives with all of it in memory."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from quantkit.core.session import Session
from quantkit.model.calls import BlockInputs
from quantkit.model.open import open_model
from quantkit.model.opened import context_length, load_dense


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_equal_those_of_the_whole_model(
    tiny_checkpoint: Callable[..., Path], family: str, dtype: str
) -> None:
    folder = tiny_checkpoint(family, dtype=dtype)
    model = open_model(folder)
    ids = torch.randint(0, 256, (3, 96), generator=torch.Generator().manual_seed(0))
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    with torch.no_grad():
        expected = whole(ids).logits.float()
    head = model.head()
    found = torch.stack([head(rows) for rows in model.hidden_states(ids)])
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_nothing_stays_in_memory_after_a_walk(tiny_checkpoint: Callable[..., Path]) -> None:
    model = open_model(tiny_checkpoint("llama"))
    model.hidden_states(torch.zeros((2, 32), dtype=torch.long))
    assert all(p.is_meta for p in model.skeleton.model.parameters())


def test_a_block_that_fails_lets_go_of_its_weights(
    tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_model(tiny_checkpoint("llama"))
    monkeypatch.setattr(BlockInputs, "run", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        model.hidden_states(torch.zeros((2, 32), dtype=torch.long))
    assert all(p.is_meta for p in model.skeleton.model.parameters())


def test_fp16_models_compute_in_fp32_on_the_cpu(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint("llama", dtype="float16")
    model, elsewhere = open_model(folder), open_model(folder, Session("meta"))
    assert (model.source_dtype, model.dtype) == (torch.float16, torch.float32)
    assert (elsewhere.dtype, elsewhere.device.type) == (torch.float16, "meta")


def test_sharding_of_the_source_changes_no_bit(tiny_checkpoint: Callable[..., Path]) -> None:
    ids = torch.randint(0, 256, (2, 64), generator=torch.Generator().manual_seed(1))
    one, five = (open_model(tiny_checkpoint("llama", shards=n)).hidden_states(ids) for n in (1, 5))
    assert torch.equal(one, five)


def test_a_model_loaded_whole_generates_as_transformers_does(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    folder = tiny_checkpoint("llama_tied")
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        found = load_dense(open_model(folder))(ids).logits
        torch.testing.assert_close(found, whole(ids).logits)


def test_the_text_model_is_the_decoder_and_not_an_encoder_beside_it(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    folder = tiny_checkpoint("llama", private=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"text_encoder": {"vocab_size": 3}}))
    model = open_model(folder)
    assert model.text_config.vocab_size == config["vocab_size"]
    assert context_length(model) == config["max_position_embeddings"]
