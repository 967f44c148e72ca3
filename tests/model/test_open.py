"""What is opened, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import quantkit
from quantkit.core.errors import InputError, RefusedError
from quantkit.model.open import open_model


def test_a_folder_that_is_no_model_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json"):
        open_model(tmp_path)


def test_a_foreign_format_is_refused_by_name(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint("llama", private=True)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "hqq"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RefusedError, match="is not supported") as caught:
        open_model(folder)
    assert "hqq" in str(caught.value)


def test_a_quantization_that_only_the_text_config_states_is_refused_as_such(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    """As Kimi-K2.5's; its weights were said to be missing."""
    folder = tiny_checkpoint("llama", private=True)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"] = {"quantization_config": {"quant_method": "compressed-tensors"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RefusedError, match="`text_config`"):
        open_model(folder)


def test_the_old_name_of_a_compressed_tensors_block_is_read(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    recipe = quantkit.build_recipe(None, method="rtn", format="compressed-tensors", samples=0)
    source, out = tiny_checkpoint("llama"), tmp_path / "out"
    quantkit.quantize(str(source), out, recipe=recipe, evaluate=False)
    weight = open_model(out).parameter("model.layers.0.mlp.down_proj.weight")
    config = json.loads((out / "config.json").read_text())
    config["compression_config"] = config.pop("quantization_config")
    (out / "config.json").write_text(json.dumps(config))
    assert weight.equal(open_model(out).parameter("model.layers.0.mlp.down_proj.weight"))
