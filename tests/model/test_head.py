from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from quantkit.model.head import Head
from quantkit.model.open import open_model
from tests.conftest import byte_tokenizer

ROWS = torch.randn(5, 32, generator=torch.Generator().manual_seed(0))


def opened(folder: Path, config: transformers.PretrainedConfig, dtype: torch.dtype) -> Head:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return open_model(folder).head()


SIZES = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "config",
    [
        lambda: transformers.LlamaConfig(**SIZES),
        lambda: transformers.Gemma3TextConfig(**SIZES),
        lambda: transformers.PhiConfig(**SIZES),  # its head has a bias
    ],
)
@pytest.mark.parametrize(("vocabulary", "width"), [(256, 100), (250, 64), (7, 7)])
def test_tiles_are_the_logits(
    tmp_path: Path,
    config: Callable[[], transformers.PretrainedConfig],
    dtype: torch.dtype,
    vocabulary: int,
    width: int,
) -> None:
    head = opened(tmp_path, config(), dtype)
    rows = ROWS.to(dtype)
    assert head.is_product(rows)
    tiles = [tile.clone() for tile in head.tiles(rows, vocabulary, width)]
    assert {tile.shape[1] for tile in tiles[:-1]} <= {width}
    assert torch.cat(tiles, 1) == pytest.approx(head(rows)[:, :vocabulary], abs=1e-6)


@pytest.mark.parametrize(
    "config",
    [
        lambda: transformers.Gemma2Config(**SIZES, final_logit_softcapping=30.0),
        lambda: transformers.GraniteConfig(**SIZES, logits_scaling=8.0),
        lambda: transformers.CohereConfig(**SIZES, logit_scale=0.25),
    ],
)
def test_logits_that_are_changed_behind_the_head_are_no_product(
    tmp_path: Path, config: Callable[[], transformers.PretrainedConfig]
) -> None:
    assert not opened(tmp_path, config(), torch.float32).is_product(ROWS)
