"""Codes and scales that no sound tool writes are refused, by the names of tensor and file."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantkit
from quantkit.core.errors import InputError
from quantkit.model.open import open_model
from tests.float_forms import FORMS, rewrite

LINEAR = "model.layers.1.mlp.up_proj"
OWN = ("fp8", "fp8-static", "fp8-block", "mxfp8", "mxfp4", "nvfp4")
"""Recipes, of which `modelopt` and `fp8` hold some."""
OTHERS = [("nvfp4", "modelopt"), ("fp8-static", "modelopt"), ("fp8-block", "fp8")]
EVERY = [*FORMS, *((name, "compressed-tensors") for name in OWN), *OTHERS]
"""Forms of other tools, and our own artifacts as (recipe, format)."""
PER_WEIGHT = ("weight_scale", "weight_scale_inv", "weight_global_scale", "weight_scale_2")
BYTES = {torch.uint8: (255,), torch.float8_e4m3fn: (127, 255)}
"""What is no number, of scales and codes of 8 bits."""


def made(form: str | tuple[str, str], source: Path, out: Path) -> Path:
    if isinstance(form, str):
        rewrite(source, form)
        return source
    name, output = form
    recipe = quantkit.build_recipe(name, format=output, samples=2, sequence_length=32)
    quantkit.quantize(str(source), out, recipe=recipe, evaluate=False)
    return out


def faults(suffix: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensor with one element changed, by what it then is."""
    found: dict[str, torch.Tensor] = {}
    packed = suffix == "weight" and tensor.dtype == torch.uint8
    for byte in () if packed else BYTES.get(tensor.dtype, ()):
        raw = tensor.clone().view(torch.uint8)
        raw.view(-1)[-1] = byte
        found[f"byte {byte}"] = raw.view(tensor.dtype)
    if tensor.dtype == torch.uint8 or suffix == "weight":
        return found
    values = {"negative": -1.0}
    if tensor.dtype.itemsize > 1:  # of NVFP4's local scales, small ones are rounded to 0
        values |= {"nan": torch.nan, "inf": torch.inf, "zero": 0.0}
    for what, value in values.items():
        changed = tensor.clone().float()
        changed.view(-1)[-1] = value
        found[what] = changed.to(tensor.dtype)
    return found


@pytest.mark.parametrize("form", EVERY, ids=lambda f: f if isinstance(f, str) else "+".join(f))
def test_each_fault_is_named(
    tiny_checkpoint: Callable[..., Path], tmp_path: Path, form: str | tuple[str, str]
) -> None:
    folder = made(form, tiny_checkpoint("llama", private=True, dtype="bfloat16"), tmp_path / "out")
    path = next(folder.glob("*.safetensors"))
    tensors = load_file(path)
    weight = open_model(folder).parameter(f"{LINEAR}.weight")
    assert weight.isfinite().all()
    count = 0
    own = isinstance(form, tuple)
    for name, tensor in tensors.items():
        suffix = name.removeprefix(f"{LINEAR}.")
        if suffix not in (*PER_WEIGHT, "weight", *(("input_scale", "input_global_scale") * own)):
            continue
        for what, changed in faults(suffix, tensor).items():
            save_file(tensors | {name: changed}, path, metadata={"format": "pt"})
            with pytest.raises(InputError, match=re.escape(f"`{name}`")) as error:
                open_model(folder).parameter(f"{LINEAR}.weight")
            assert path.name in error.value.what, what
            assert "\n" not in error.value.what
            count += 1
    assert count >= 1 + ("mxfp4" not in str(form))


@pytest.mark.parametrize("form", ["fp8_block", "fp8_channel", "nvfp4", "nvfp4_modelopt"])
def test_scales_of_zero_over_zeros_are_read(
    tiny_checkpoint: Callable[..., Path], form: str
) -> None:
    """Tools that divide by the largest magnitude write them."""
    folder = tiny_checkpoint("llama", private=True, dtype="bfloat16")
    rewrite(folder, form)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    scale = next(
        n for n in (f"{LINEAR}.weight_scale", f"{LINEAR}.weight_scale_inv") if n in tensors
    )
    codes = next(n for n in (f"{LINEAR}.weight_packed", f"{LINEAR}.weight") if n in tensors)
    tensors[scale][0] = 0
    tensors[codes].view(torch.uint8)[: 128 if form == "fp8_block" else 1] = 0
    save_file(tensors, path, metadata={"format": "pt"})
    weight = open_model(folder).parameter(f"{LINEAR}.weight")
    assert not weight[0].any()
    assert weight[-1].any()


def test_products_that_the_dtype_cannot_hold_are_refused(
    tiny_checkpoint: Callable[..., Path],
) -> None:
    folder = tiny_checkpoint("llama", private=True, dtype="bfloat16")
    rewrite(folder, "fp8_tensor")
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[f"{LINEAR}.weight_scale"].fill_(3e38)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match=rf"`{LINEAR}.weight.*model.safetensors"):
        open_model(folder).parameter(f"{LINEAR}.weight")
