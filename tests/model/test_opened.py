"""A model run block by block gives what transformers gives with all of it in memory."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import quantkit
from quantkit.core.errors import QuantkitError
from quantkit.core.session import Session
from quantkit.model.calls import BlockInputs
from quantkit.model.open import open_model
from quantkit.model.opened import context_length, load_dense
from tests.float_forms import rewrite


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


@pytest.mark.parametrize("kept", ["", "weight_scale"])
@pytest.mark.parametrize("form", ["int", "fp8_channel", "mxfp4", "nvfp4"])
def test_linears_that_a_config_forgets_are_dense_where_the_file_has_nothing_but_weights(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, form: str, kept: str
) -> None:
    folder, linear = tiny_checkpoint("llama", private=True), "model.layers.1.mlp.up_proj"
    dense = load_file(folder / "model.safetensors")[f"{linear}.weight"].clone()
    if form == "int":
        recipe = quantkit.build_recipe("rtn", format="compressed-tensors")
        quantkit.quantize(str(folder), tmp_path / "out", recipe=recipe, evaluate=False)
        folder = tmp_path / "out"
    else:
        rewrite(folder, form)
    file = next(folder.glob("*.safetensors"))
    stored = load_file(file)
    parts = {name for name in stored if name.startswith(f"{linear}.")}
    tensors = {n: t.clone() for n, t in stored.items() if n not in parts or n.endswith(kept or "/")}
    save_file(tensors | {f"{linear}.weight": dense}, file, metadata={"format": "pt"})
    if kept:
        with pytest.raises(QuantkitError, match=linear):
            open_model(folder).parameter(f"{linear}.weight")
        return
    model = open_model(folder)
    assert model.format is not None
    assert model.scheme(linear) is None
    assert torch.equal(model.parameter(f"{linear}.weight"), dense)
    assert torch.equal(model.dense().stored(f"{linear}.weight"), dense)
    assert model.scheme("model.layers.0.mlp.up_proj") is not None


def test_a_head_that_is_tied_is_dense_though_no_config_says_so(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    folder = tiny_checkpoint("llama", private=True, tie_word_embeddings=True)
    rewrite(folder, "mxfp4")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["ignore"] = []
    (folder / "config.json").write_text(json.dumps(config))
    model = open_model(folder)
    assert torch.equal(
        model.parameter("lm_head.weight"), model.parameter("model.embed_tokens.weight")
    )


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
