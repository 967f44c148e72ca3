"""Of a multimodal model the text decoder is quantized; towers and projectors stay byte for byte."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import quantkit
from quantkit.core.recipe import Override
from quantkit.model.open import open_model
from tests.conftest import SHAPE, byte_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Gemma 3 with its vision tower."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    torch.manual_seed(0)
    config = Gemma3Config(text_config=SHAPE, vision_config=vision, mm_tokens_per_image=4)
    made = tmp_path_factory.mktemp("towers") / "model"
    Gemma3ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(made)
    byte_tokenizer().save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def quantized(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = quantkit.build_recipe("gptq-compressed", samples=4, sequence_length=64)
    out = tmp_path_factory.mktemp("towers") / "out"
    return quantkit.quantize(str(folder), out, recipe=recipe).output


def test_the_decoder_is_quantized_and_the_rest_copied(folder: Path, quantized: Path) -> None:
    before = load_file(folder / "model.safetensors")
    after = load_file(quantized / "model.safetensors")
    kept = before.keys() & after.keys()
    assert {name for name in before if "vision" in name or "projector" in name} <= kept
    assert all(torch.equal(before[name], after[name]) for name in kept)
    assert {name.partition("layers.")[0] for name in after.keys() - before.keys()} == {
        next(
            name for name in before if "layers.0.self_attn.q_proj" in name and "vision" not in name
        ).partition("layers.")[0]
    }


def test_the_text_part_is_what_transformers_computes(folder: Path) -> None:
    from transformers import Gemma3ForConditionalGeneration

    ids = torch.randint(2, 250, (1, 24), generator=torch.Generator().manual_seed(0))
    model = open_model(folder)
    with torch.no_grad():
        network = Gemma3ForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16)
        expected = network(input_ids=ids).logits[0].float()
    found = model.head()(model.hidden_states(ids)[0])
    assert (found - expected).norm() < 0.01 * expected.norm()


def test_the_config_excludes_the_towers_by_both_of_their_names(quantized: Path) -> None:
    block = json.loads((quantized / "config.json").read_text())["quantization_config"]
    towers = [name for name in block["ignore"] if "vision_tower" in name]
    assert {name.startswith("model.") for name in towers} == {True, False}


@pytest.mark.parametrize("output", ["gptq", "compressed-tensors"])
def test_linears_of_several_schemes_have_both_of_their_names(
    folder: Path, tmp_path: Path, output: str
) -> None:
    """transformers compares names with its own, and vLLM with those of the files."""
    recipe = quantkit.build_recipe(None, method="rtn", format=output, group_size=32, samples=0)
    override = Override("*.0.*.o_proj", **({"skip": True} if output == "gptq" else {"bits": 8}))
    recipe = replace(recipe, overrides=(override,))
    out = quantkit.quantize(str(folder), tmp_path / "out", recipe=recipe, evaluate=False).output
    block = json.loads((out / "config.json").read_text())["quantization_config"]
    if output == "gptq":
        (names,) = block["modules_in_block_to_quantize"]
    else:
        names = [name for group in block["config_groups"].values() for name in group["targets"]]
    both = {
        f"{path}.layers.1.self_attn.o_proj"
        for path in ("language_model.model", "model.language_model")
    }
    assert both <= set(names)
