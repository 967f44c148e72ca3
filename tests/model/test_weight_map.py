"""Tensors are found by transformers' own rules, and read one expert at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import quantkit
from quantkit.core.errors import InputError
from quantkit.model.open import open_model
from tests.conftest import EXPERTS, FAMILIES, LONG_TAIL, SHAPE, WIDE


@pytest.mark.parametrize("family", [*FAMILIES, *LONG_TAIL, *WIDE])
def test_every_tensor_is_that_of_transformers_bit_for_bit(
    tiny_checkpoint: Callable[..., Path], family: str
) -> None:
    """Those of split experts lie in the parameter that was split."""
    folder = tiny_checkpoint(family)
    model = open_model(folder)
    truth = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = truth.state_dict()
    for name, _ in model.tensors():
        place = model.place(name)
        assert place is not None, name
        found = model.stored(name)
        if name in expected:
            assert torch.equal(found, expected[name]), name
    for fused in model.skeleton.rules.fused:
        for name, expert, role in fused.parts():
            whole = expected[fused.name][expert]
            assert torch.equal(model.stored(name), fused.part(whole, role)), name


@pytest.mark.parametrize("family", [*FAMILIES, *LONG_TAIL, *WIDE])
def test_every_stored_tensor_is_used_or_named(
    tiny_checkpoint: Callable[..., Path], family: str
) -> None:
    model = open_model(tiny_checkpoint(family))
    used = {name for place in model.weights.places.values() for name in place.names}
    assert used | set(model.weights.unused) == set(model.checkpoint.names)
    assert not model.weights.unused


def test_one_expert_is_read_without_the_others(
    tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from quantkit.checkpoint import tensors

    read: list[int] = []
    original = tensors.read_tensor

    def counted(*arguments: Any, **options: Any) -> torch.Tensor:
        found = original(*arguments, **options)
        read.append(found.nbytes)
        return found

    model = open_model(tiny_checkpoint("experts_fused"))
    monkeypatch.setattr(tensors, "read_tensor", counted)
    weight = model.stored("model.layers.0.mlp.experts.2.gate_proj.weight")
    assert read == [2 * weight.nbytes]  # gate and up of this expert are one item


@pytest.mark.parametrize(
    "cut", [lambda t: t[:2], lambda t: t[0], lambda t: t[:0], lambda t: t[0, 0]]
)
def test_a_parameter_of_other_experts_than_the_configs_is_told(
    tiny_checkpoint: Callable[..., Path], cut: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    folder = tiny_checkpoint("experts_fused", private=True)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    tensors[name] = cut(tensors[name]).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="does not match the weights"):
        open_model(folder)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("model.norm.weight", "are both `model.norm.weight`"),
        ("model.layers.0.block_sparse_moe.experts.1.w1.weight", "do not fit together"),
    ],
)
def test_two_tensors_that_would_be_one_are_told(
    tiny_checkpoint: Callable[..., Path], name: str, told: str
) -> None:
    """transformers takes a name with its prefix twice for the same; which one counts is chance."""
    folder = tiny_checkpoint("experts_renamed", private=True)
    tensors = load_file(folder / "model.safetensors")
    tensors[f"model.{name}"] = torch.zeros_like(tensors[name])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=told):
        open_model(folder)


@pytest.mark.parametrize("rows", [0, 1])
def test_fused_experts_with_too_few_rows_are_told(
    tiny_checkpoint: Callable[..., Path], rows: int
) -> None:
    folder = tiny_checkpoint("experts_apart", private=True)
    tensors = load_file(folder / "model.safetensors")
    apart = [name for name in tensors if ".layers.0.mlp.experts." in name]
    tensors = {name: tensor for name, tensor in tensors.items() if name not in apart}
    tensors["model.layers.0.mlp.experts.gate_up_proj"] = torch.zeros(8, rows, 128)
    tensors["model.layers.0.mlp.experts.down_proj"] = torch.zeros(8, 128, 64)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="does not match the weights"):
        open_model(folder)


def test_changing_a_converted_tensor_changes_no_later_one(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    model = open_model(tiny_checkpoint("experts_renamed"))
    name = "model.layers.0.mlp.experts.0.gate_proj.weight"
    first = model.stored(name).clone()
    model.stored(name).zero_()
    assert torch.equal(model.stored(name), first)


def test_layers_that_the_class_does_not_use_are_copied_and_named(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """As the draft layers (MTP) of many models, which come after the last block."""
    folder = tiny_checkpoint("latent_attention", private=True)
    tensors = load_file(folder / "model.safetensors")
    draft = {"model.layers.2.eh_proj.weight": torch.randn(128, 256)}
    save_file(tensors | draft, folder / "model.safetensors", metadata={"format": "pt"})
    recipe = quantkit.build_recipe("rtn", samples=0)
    result = quantkit.quantize(str(folder), tmp_path / "out", recipe=recipe, evaluate=False)
    assert any("not use them: 1, " in remark and "layers.2" in remark for remark in result.remarks)
    after = load_file(result.output / "model.safetensors")
    assert all(torch.equal(after[name], tensor) for name, tensor in draft.items())


def test_experts_that_are_stored_transposed_are_converted_once_a_layer(tmp_path: Path) -> None:
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 4, 4]}
    config = transformers.Qwen3VLMoeConfig(
        text_config=SHAPE | EXPERTS | {"rope_parameters": rope},
        vision_config=vision | {"out_hidden_size": 128, "deepstack_visual_indexes": [0]},
    )
    torch.manual_seed(0)
    network = transformers.Qwen3VLMoeForConditionalGeneration(config)
    network.save_pretrained(tmp_path)
    model = open_model(tmp_path)
    (fused, *_) = (f for f in model.skeleton.rules.fused if f.key == "gate_up_proj")
    expected = network.state_dict()[fused.name]
    name = f"{fused.experts}.5.up_proj.weight"
    place = model.place(name)
    assert place is not None
    assert place.conversion is not None
    assert torch.equal(model.stored(name), expected[5].chunk(2)[1])
