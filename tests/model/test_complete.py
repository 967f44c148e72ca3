"""A checkpoint that is not the model of its config is told so from headers, before any work."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from quantkit.core.errors import InputError, QuantkitError
from quantkit.model.open import open_model
from quantkit.model.structure import trace_structure
from quantkit.model.walk import release

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tiny_checkpoint: Any) -> Path:
    return Path(tiny_checkpoint("llama", private=True))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def configure(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_all_that_is_missing_is_told_at_once(folder: Path) -> None:
    rewrite(folder, lambda tensors: [tensors.pop(UP), tensors.pop("model.norm.weight")])
    with pytest.raises(InputError, match="not in") as caught:
        open_model(folder)
    assert UP in str(caught.value)
    assert "model.norm.weight" in str(caught.value)


def test_more_blocks_than_were_stored_are_missing(folder: Path) -> None:
    configure(folder, num_hidden_layers=3)
    with pytest.raises(InputError, match=r"model\.layers\.2\..*and \d+ more"):
        open_model(folder)


def test_a_late_tensor_of_another_shape_is_named_with_both(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({UP: torch.zeros(256, 64)}))
    with pytest.raises(InputError, match="does not match the weights") as caught:
        open_model(folder)
    assert f"`{UP}` has shape (256, 64) in the checkpoint, but (256, 128) by config.json" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": "4096"},
        {"num_key_value_heads": 2.5},
        {"hidden_size": -128},
        {"num_attention_heads": 0},
        {"head_dim": 0},
        {"intermediate_size": 10**12},
        {"vocab_size": -1},
        {"rope_scaling": 7},
        {"rope_parameters": {"rope_type": "none such"}},
        {"hidden_act": "none such"},
        {"num_hidden_layers": 0},
        {"quantization_config": "gptq"},
        {"quantization_config": [4]},
    ],
    ids=str,
)
def test_a_config_of_a_stranger_ends_in_an_error_for_people(
    folder: Path, changes: dict[str, Any]
) -> None:
    configure(folder, **changes)
    with pytest.raises(QuantkitError) as caught:
        trace_structure(open_model(folder).skeleton)
    assert caught.value.exit_code in (2, 4)


class Gated(nn.Module):
    """A part with a number that is no parameter, as routers and layer scales have."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.empty(3, device="meta"))
        self.register_buffer("passing", torch.ones(2), persistent=False)


def test_buffers_that_a_checkpoint_holds_are_loaded_and_let_go(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"model.gate.scale": torch.arange(3.0)}))
    skeleton, gate = open_model(folder).skeleton, Gated()
    skeleton.model.get_submodule("model").add_module("gate", gate)
    opened = open_model(folder, skeleton=skeleton)
    opened.load("model.gate", gate)
    assert gate.get_buffer("scale").tolist() == [0, 1, 2]
    release(gate)
    assert gate.get_buffer("scale").is_meta
    assert gate.get_buffer("passing").tolist() == [1, 1]
