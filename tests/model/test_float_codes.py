"""Sources in 8- and 4-bit floats are read as the dense weights that they mean."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from quantkit.core.errors import InputError, RefusedError
from quantkit.model.open import open_model
from tests.float_forms import FORMS, as_gpt_oss, rewrite

BOTH = ("llama", "experts_apart")
HELD = ("fp8_channel", "mxfp4", "nvfp4")
"""Forms that a format holds: they open as artifacts, and whose linears keep their codes."""


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("form", FORMS)
def test_each_weight_is_what_its_codes_mean(
    tiny_checkpoint: Callable[..., Path], form: str, family: str
) -> None:
    folder = tiny_checkpoint(family, private=True, dtype="bfloat16")
    meant = rewrite(folder, form)
    model = open_model(folder)
    assert (model.format is not None) == (form in HELD)
    if model.format is not None:
        for name, weight in meant.items():
            qtensor = model.qtensor(name.removesuffix(".weight"))
            assert torch.equal(qtensor.dequantize(), weight), name
        return
    for name, weight in meant.items():
        found = model.stored(name)
        assert found.dtype is torch.bfloat16
        assert torch.equal(found, weight.to(torch.bfloat16)), name
    assert set(model.checkpoint.coding.tensors) == set(meant)


@pytest.mark.parametrize("form", sorted(set(FORMS) - set(HELD)))
def test_every_stored_tensor_is_part_of_a_weight_or_dropped(
    tiny_checkpoint: Callable[..., Path], form: str
) -> None:
    folder = tiny_checkpoint("llama", private=True)
    rewrite(folder, form)
    source = open_model(folder).dense().checkpoint
    parts, dropped = source.coding.parts, set(source.coding.dropped)
    plain = set(source.names) - set(source.coding.tensors)
    assert parts | dropped | plain == set(source.stored)
    assert not parts & dropped


def test_scales_of_blocks_may_have_the_shape_that_modelopt_writes(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    folder = tiny_checkpoint("llama", private=True, dtype="bfloat16")
    meant = rewrite(folder, "fp8_block")
    tensors = load_file(folder / "model.safetensors")
    tensors |= {n: t[:, None, :, None] for n, t in tensors.items() if n.endswith("_scale_inv")}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model = open_model(folder)
    for name, weight in meant.items():
        assert torch.equal(model.stored(name), weight.to(torch.bfloat16)), name


@pytest.mark.parametrize("family", ["llama", "latent_attention"])
def test_block_fp8_is_what_transformers_reads(
    tiny_checkpoint: Callable[..., Path], family: str
) -> None:
    """transformers has no 8-bit floats on a CPU and decodes them, too."""
    folder = tiny_checkpoint(family, private=True, dtype="bfloat16")
    rewrite(folder, "fp8_block")
    truth = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    expected = truth.state_dict()
    model = open_model(folder)
    whole = [name for name, _ in model.tensors() if name in expected]
    assert whole
    for name in whole:
        assert torch.equal(model.stored(name), expected[name].to(model.stored(name).dtype)), name
    for fused in model.skeleton.rules.fused:
        for name, expert, role in fused.parts():
            part = fused.part(expected[fused.name][expert], role)
            assert torch.equal(model.stored(name), part), name


def test_gpt_oss_mxfp4_is_what_transformers_reads(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint("experts_fused", private=True, dtype="bfloat16")
    as_gpt_oss(folder)
    truth = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    expected = truth.state_dict()
    model = open_model(folder)
    for fused in model.skeleton.rules.fused:
        for name, expert, role in fused.parts():
            part = fused.part(expected[fused.name][expert], role)
            assert torch.equal(model.stored(name), part), name


def test_one_expert_of_a_stack_is_decoded_alone(
    tiny_checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_checkpoint("experts_fused", private=True, dtype="bfloat16")
    as_gpt_oss(folder)
    model = open_model(folder)
    read: list[int] = []
    from quantkit.checkpoint import tensors

    original = tensors.read_tensor

    def counted(*arguments: Any, **options: Any) -> torch.Tensor:
        found = original(*arguments, **options)
        read.append(found.nbytes)
        return found

    monkeypatch.setattr(tensors, "read_tensor", counted)
    weight = model.stored("model.layers.0.mlp.experts.1.down_proj.weight")
    assert sum(read) == weight.numel() // 2 + weight.numel() // 32


def test_8_bit_floats_without_scales_are_refused(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint("llama", private=True)
    rewrite(folder, "fp8_block")
    scales = sorted(name for name in load_file(folder / "model.safetensors") if "scale" in name)
    _without(folder, scales[0])
    with pytest.raises(InputError, match=r"has no scale\n1 such tensors have none, 13 have one"):
        open_model(folder)
    for name in scales[1:-1]:
        _without(folder, name)
    with pytest.raises(RefusedError, match="its scale was not found"):
        open_model(folder)


def test_scales_of_another_block_are_told_with_the_weights_name(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    folder = tiny_checkpoint("llama", private=True)
    rewrite(folder, "fp8_block")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[f"{name}_scale_inv"] = torch.ones(7, 3)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=f"`{name}` cannot be decoded"):
        open_model(folder).stored(name)


@pytest.mark.parametrize(
    ("form", "name", "tensor"),
    [
        ("fp8_tensor", "pre_quant_scale", torch.ones(128)),
        ("fp8_channel", "weight_zero_point", torch.zeros(256, 1)),
        ("nvfp4", "weight_g_idx", torch.arange(128)),
    ],
)
def test_what_changes_the_meaning_of_codes_is_refused(
    tiny_checkpoint: Callable[..., Path], form: str, name: str, tensor: torch.Tensor
) -> None:
    folder = tiny_checkpoint("llama", private=True)
    rewrite(folder, form)
    _with(folder, f"model.layers.1.mlp.up_proj.{name}", tensor)
    with pytest.raises(RefusedError, match="changes what the codes beside it mean"):
        open_model(folder)


@pytest.mark.parametrize(
    ("form", "end"), [("nvfp4", "_global_scale"), ("nvfp4_modelopt", "_scale_2")]
)
def test_nvfp4_without_the_scale_of_its_scales_is_told(
    tiny_checkpoint: Callable[..., Path], form: str, end: str
) -> None:
    """It would be read some thousand times too large or too small."""
    folder = tiny_checkpoint("llama", private=True)
    rewrite(folder, form)
    tensors = load_file(folder / "model.safetensors")
    del tensors[f"model.layers.0.mlp.up_proj.weight{end}"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"up_proj.* has 0 scales of all its scales"):
        open_model(folder)


def test_a_weight_in_codes_and_dense_is_told(tiny_checkpoint: Callable[..., Path]) -> None:
    folder = tiny_checkpoint("llama", private=True)
    rewrite(folder, "mxfp4")
    _with(folder, "model.layers.1.mlp.up_proj.weight", torch.zeros(256, 128))
    with pytest.raises(InputError, match="more than once"):
        open_model(folder)


@pytest.mark.parametrize("shape", [(0, 128), (256, 0), (4,), (2, 2, 2, 2), ()])
def test_codes_of_no_matrix_are_told(
    tiny_checkpoint: Callable[..., Path], shape: tuple[int, ...]
) -> None:
    folder = tiny_checkpoint("llama", private=True)
    rewrite(folder, "fp8_tensor")
    codes = torch.zeros(shape).to(torch.float8_e4m3fn)
    _with(folder, "model.layers.1.mlp.up_proj.weight", codes)
    with pytest.raises(InputError, match="no matrix"):
        open_model(folder)


def test_integers_that_no_config_speaks_of_are_refused(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    folder = tiny_checkpoint("llama", private=True)
    codes = torch.zeros(256, 128, dtype=torch.int8)
    _with(folder, "model.layers.1.mlp.up_proj.weight", codes)
    with pytest.raises(RefusedError, match="is stored as I8"):
        open_model(folder)


def _with(folder: Path, name: str, tensor: torch.Tensor) -> None:
    tensors = load_file(folder / "model.safetensors") | {name: tensor}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _without(folder: Path, name: str) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
