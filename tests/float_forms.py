"""Dense checkpoints rewritten with weights in 8- and 4-bit floats, as other tools store them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from quantkit.core.scheme import Scheme
from quantkit.grid.minifloat import E2M1

FLOAT_SCHEMES = (
    Scheme("fp8", 8, None),
    Scheme("fp8", 8, None, activation="fp8-token"),
    Scheme("fp8", 8, None, rows=None),
    Scheme("fp8", 8, None, activation="fp8-tensor", rows=None),
    Scheme("fp8", 8, 128, rows=128),
    Scheme("fp8", 8, 128, activation="fp8-group128", rows=128),
    Scheme("mxfp8", 8, 32),
    Scheme("mxfp4", 4, 32),
    Scheme("nvfp4", 4, 16),
    Scheme("nvfp4", 4, 16, activation="nvfp4"),
)
"""Each that a format holds."""

Tensors = dict[str, torch.Tensor]
LIMIT = 448.0
"""The largest e4m3 number."""
CT_WEIGHTS = {"type": "float", "symmetric": True, "dynamic": False}


def blocks(weight: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The largest magnitude of each block of `weight`; the last ones may be cut."""
    parts = [torch.split(part, columns, dim=1) for part in torch.split(weight.abs(), rows)]
    return torch.stack([torch.stack([p.max() for p in line]) for line in parts])


def spread(scales: torch.Tensor, rows: int, columns: int, shape: torch.Size) -> torch.Tensor:
    """Each weight's scale."""
    full = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return full[: shape[0], : shape[1]]


def e4m3(weight: torch.Tensor, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and fp32 scales of each block."""
    scales = (blocks(weight, rows, columns) / LIMIT).clamp(min=1e-12)
    return (weight / spread(scales, rows, columns, weight.shape)).to(torch.float8_e4m3fn), scales


def e2m1(values: torch.Tensor) -> torch.Tensor:
    """Bytes of two codes each, nearest to `values`."""
    grid = torch.tensor([*E2M1, *(-v for v in E2M1)])
    codes = (values[..., None] - grid).abs().argmin(-1).to(torch.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4


def block_fp8(name: str, weight: torch.Tensor) -> Tensors:
    """DeepSeek-V3's: 128 x 128."""
    codes, scales = e4m3(weight, 128, 128)
    return {name: codes, f"{name}_scale_inv": scales}


def channel_fp8(name: str, weight: torch.Tensor) -> Tensors:
    """compressed-tensors' and FBGEMM's: one scale a row."""
    codes, scales = e4m3(weight, 1, weight.shape[1])
    return {name: codes, f"{name}_scale": scales}


def tensor_fp8(name: str, weight: torch.Tensor) -> Tensors:
    """ModelOpt's: one scale, and a static one of the activations."""
    codes, scales = e4m3(weight, *weight.shape)
    beside = name.removesuffix("weight")
    return {
        name: codes,
        f"{name}_scale": scales.reshape(()),
        f"{beside}input_scale": torch.tensor(0.5),
    }


def mxfp4(name: str, weight: torch.Tensor) -> Tensors:
    """compressed-tensors' MXFP4."""
    exponents = torch.log2(blocks(weight, 1, 32) / 6).ceil().clamp(-127, 127)
    values = weight / spread(exponents.exp2(), 1, 32, weight.shape)
    return {
        f"{name}_packed": e2m1(values),
        f"{name}_scale": (exponents + 127).to(torch.uint8),
    }


def _nvfp4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, e4m3 scales of 16 weights, and the factor of all scales."""
    factor = weight.abs().max() / (6 * LIMIT)
    scales = (blocks(weight, 1, 16) / 6 / factor).to(torch.float8_e4m3fn)
    each = spread(scales.float() * factor, 1, 16, weight.shape).clamp(min=1e-12)
    return e2m1(weight / each), scales, factor


def nvfp4(name: str, weight: torch.Tensor) -> Tensors:
    """compressed-tensors' NVFP4: the scale of all scales is a divisor."""
    codes, scales, factor = _nvfp4(weight)
    whole = (1 / factor).reshape(1)
    return {
        f"{name}_packed": codes,
        f"{name}_scale": scales,
        f"{name}_global_scale": whole,
        f"{name.removesuffix('weight')}input_global_scale": torch.ones(1),
    }


def modelopt_fp4(name: str, weight: torch.Tensor) -> Tensors:
    """ModelOpt's NVFP4: the scale of all scales is a factor."""
    codes, scales, factor = _nvfp4(weight)
    return {name: codes, f"{name}_scale": scales, f"{name}_scale_2": factor}


def _ct(layout: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": CT_WEIGHTS | weights, "format": layout}
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "re:.*mlp.gate$"],
    }


FORMS: dict[str, tuple[Callable[[str, torch.Tensor], Tensors], dict[str, Any] | None]] = {
    "fp8_block": (
        block_fp8,
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
        },
    ),
    "fp8_channel": (channel_fp8, _ct("naive-quantized", num_bits=8, strategy="channel")),
    "fp8_tensor": (tensor_fp8, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "mxfp4": (
        mxfp4,
        _ct(
            "mxfp4-pack-quantized",
            num_bits=4,
            strategy="group",
            group_size=32,
            scale_dtype="torch.uint8",
        ),
    ),
    "nvfp4": (
        nvfp4,
        _ct("nvfp4-pack-quantized", num_bits=4, strategy="tensor_group", group_size=16),
    ),
    "nvfp4_modelopt": (modelopt_fp4, None),
}
"""Each with its block in config.json; ModelOpt's may be in a file of its own."""


def is_coded(name: str, weight: torch.Tensor) -> bool:
    """Whether a tensor is a linear's weight inside the blocks, and no router's."""
    inside = ".layers." in name and name.endswith(".weight") and weight.ndim == 2
    return inside and not name.endswith("mlp.gate.weight")


def rewrite(folder: Path, form: str) -> Tensors:
    """Store the linears of a dense checkpoint in a form of floats; the weights that it then means.

    The weights are fp32, computed from the codes one by one.
    """
    encode, block = FORMS[form]
    tensors = load_file(folder / "model.safetensors")
    meant: Tensors = {}
    stored: Tensors = {}
    for name, tensor in tensors.items():
        if is_coded(name, tensor):
            made = encode(name, tensor.float())
            stored |= made
            meant[name] = _meaning(form, name, made, tensor.shape)
        else:
            stored[name] = tensor
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    if block is not None:
        config["quantization_config"] = block
    else:
        (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    (folder / "config.json").write_text(json.dumps(config))
    return meant


def _meaning(form: str, name: str, made: Tensors, shape: torch.Size) -> torch.Tensor:
    codes = made.get(name, made.get(f"{name}_packed"))
    assert codes is not None
    if codes.dtype == torch.uint8:
        table = torch.tensor([*E2M1, *(-v for v in E2M1)])
        codes = table[torch.stack((codes & 15, codes >> 4), -1).flatten(1).long()]
    scales = next(made[name + end] for end in ("_scale_inv", "_scale") if name + end in made)
    if form == "mxfp4":
        scales = (scales.float() - 127).exp2()
    scales = scales.float() * made.get(f"{name}_scale_2", torch.tensor(1.0))
    scales = scales / made.get(f"{name}_global_scale", torch.tensor(1.0))
    size = {"fp8_block": (128, 128), "mxfp4": (1, 32)}.get(form, (1, 16))
    if form in ("fp8_channel", "fp8_tensor"):
        return codes.float() * scales
    return codes.float() * spread(scales, *size, shape)


def as_gpt_oss(folder: Path) -> None:
    """Store the experts of a dense gpt-oss as OpenAI publishes them."""
    tensors = load_file(folder / "model.safetensors")
    for name in [n for n in tensors if n.endswith("_proj") and "experts" in n]:
        rows = tensors.pop(name).float().transpose(1, 2)  # (experts, out, in)
        groups = rows.reshape(*rows.shape[:2], -1, 32)
        exponents = torch.log2(groups.abs().amax(-1) / 6).ceil().clamp(-127, 127)
        tensors[f"{name}_blocks"] = e2m1(groups / exponents.exp2()[..., None])
        tensors[f"{name}_scales"] = (exponents + 127).to(torch.uint8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": skipped}
    (folder / "config.json").write_text(json.dumps(config))
