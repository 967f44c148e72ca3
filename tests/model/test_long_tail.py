"""Families of other shapes: each runs as transformers runs it, or is refused before any work."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

import quantkit
from quantkit.model.open import open_model

RUN = (
    "bloom",
    "codegen",
    "falcon",
    "falcon_alibi",
    "gemma2",
    "gpt_neox",
    "gptj",
    "mixtral",
    "mpt",
    "opt",
    "phi",
    "qwen3_moe",
    "stablelm",
)


@pytest.mark.parametrize("family", RUN)
@pytest.mark.parametrize("blocks", [1, 2])
def test_logits_equal_those_of_transformers(
    tiny_checkpoint: Callable[..., Path], family: str, blocks: int
) -> None:
    folder = tiny_checkpoint(family, num_hidden_layers=blocks)
    ids = torch.randint(2, 250, (2, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = transformers.AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    model = open_model(folder)
    head = model.head()
    found = torch.stack([head(rows) for rows in model.hidden_states(ids)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", RUN)
def test_a_run_ends_near_the_original(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, family: str
) -> None:
    recipe = quantkit.build_recipe("w8a16", samples=2, sequence_length=64)
    folder = str(tiny_checkpoint(family))
    quantkit.quantize(folder, tmp_path / "out", recipe=recipe, evaluate=False)
    found = quantkit.evaluate(
        str(tmp_path / "out"), reference=folder, sequence_length=64, windows=2
    ).to_dict()
    assert 0 < found["kl"]["mean"] < 0.01
