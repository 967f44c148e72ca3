"""The fixtures that other tests stand on."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def test_every_family_loads_and_predicts(family: str, tiny_checkpoint: Any) -> None:
    folder = tiny_checkpoint(family)
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.arange(2, 34)[None]
    with torch.no_grad():
        logits = model(ids).logits
    assert torch.isfinite(logits).all()
    assert logits.softmax(-1).max() > 0.05  # far from uniform, so that quantization shows


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_dtype_and_shards_are_as_asked(tiny_checkpoint: Any, dtype: str, shards: int) -> None:
    folder: Path = tiny_checkpoint(dtype=dtype, shards=shards)
    assert len(list(folder.glob("*.safetensors"))) == shards
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}


def test_same_seed_same_weights_whatever_the_shards(tiny_checkpoint: Any) -> None:
    one, three, other = (
        AutoModelForCausalLM.from_pretrained(tiny_checkpoint(**options)).state_dict()
        for options in ({}, {"shards": 3}, {"seed": 1})
    )
    assert all(torch.equal(one[name], three[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


def test_tokenizer_gives_a_token_a_byte(tiny_checkpoint: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint())
    text = "Zürich, 東京 \n\x00 🙂"
    ids = tokenizer(text).input_ids
    assert len(ids) == len(text.encode())
    assert max(ids) < 256
    assert tokenizer.decode(ids) == text


def test_private_folder_is_a_copy(tiny_checkpoint: Any) -> None:
    shared, private = tiny_checkpoint(), tiny_checkpoint(private=True)
    (private / "config.json").unlink()
    assert (shared / "config.json").exists()
