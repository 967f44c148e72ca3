"""Linears of compressed-tensors in floats of 8 and 4 bits.

FP8: weight e4m3 (O, K); weight_scale in the model's dtype, (1,) of a tensor, (O, 1) of channels, or
one a block of 128 by 128. MXFP8: weight_scale uint8 (O, K/32), exponents. MXFP4 and NVFP4:
weight_packed uint8 (O, K/2), two codes a byte, the first in the low bits; scales uint8 (O, K/32),
or e4m3 (O, K/16) with a divisor of them all, weight_global_scale fp32 (1,). Static scales of
inputs: fp32 (1,).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from quantkit.core.facts import STORED, Layout, LinearFacts
from quantkit.core.format import stored_tensor
from quantkit.core.scheme import Activation, Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor

FORMS = {
    "fp8": "float-quantized",
    "mxfp8": "mxfp8-quantized",
    "mxfp4": "mxfp4-pack-quantized",
    "nvfp4": "nvfp4-pack-quantized",
}
WEIGHT_ONLY = "naive-quantized"
"""Of FP8, where activations stay as they are."""
CODES = {"uint8": "U8", "float8_e4m3fn": "F8_E4M3"}
"""Dtypes of scales that no engine reads in another one, as safetensors names them."""
FLOATS = "float32 bfloat16 float16"
TOKENS: Mapping[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True}
ACTIVATIONS: Mapping[Activation, Mapping[str, Any]] = {
    "fp8-token": {**TOKENS, "strategy": "token", "dynamic": True},
    "fp8-tensor": {**TOKENS, "strategy": "tensor", "dynamic": False},
    "fp8-group128": {**TOKENS, "strategy": "group", "group_size": 128, "dynamic": True},
    "nvfp4": {
        **TOKENS,
        "num_bits": 4,
        "strategy": "tensor_group",
        "group_size": 16,
        "dynamic": "local",
        "scale_dtype": "torch.float8_e4m3fn",
        "zp_dtype": "torch.float8_e4m3fn",
    },
}
INPUT_SCALES: Mapping[Activation | None, str] = {
    "fp8-tensor": "input_scale",
    "nvfp4": "input_global_scale",
}


def encode(qtensor: QTensor, _dtype: str = "float32") -> dict[str, torch.Tensor]:
    """The tensors of one linear, as in the text above; `qtensor` is not modified."""
    import torch

    from quantkit.grid.packing import pack_pairs

    codes, scheme, scales = qtensor.codes, qtensor.scheme, qtensor.scales
    if scheme.bits == 4:
        out = {"weight_packed": pack_pairs(codes)}
    else:
        out = {"weight": codes.view(torch.float8_e4m3fn)}
    out["weight_scale"] = scales.reshape(1) if scheme.rows is None else scales
    if qtensor.global_scale is not None:
        out["weight_global_scale"] = qtensor.global_scale
    if name := INPUT_SCALES.get(scheme.activation):
        assert qtensor.input_scale is not None
        out[name] = qtensor.input_scale
    return out


def decode(tensors: Mapping[str, torch.Tensor], scheme: Scheme, linear: LinearFacts) -> QTensor:
    """The QTensor of `linear`: codes uint8 (O, K), scales (blocks of rows, G) as stored.

    Raises:
        InputError: a tensor is missing, has another dtype or shape, or impossible values.
    """
    import torch

    from quantkit.grid.floats import require_numbers, require_scales, require_spanned
    from quantkit.grid.packing import unpack_pairs
    from quantkit.grid.qtensor import QTensor

    expected = layout(scheme, linear, "float32")

    def tensor(name: str, dtypes: str) -> torch.Tensor:
        return stored_tensor(tensors, linear, name, dtypes, expected[name][1])

    def scale(name: str, dtypes: str) -> torch.Tensor:
        found, whole = tensor(name, dtypes), name != "weight_scale"
        require_scales(found, f"{linear.name}.{name}", positive=whole)
        return found

    kind = scheme.scale_dtype("float32")
    scales = scale("weight_scale", kind if kind in CODES else FLOATS)
    if scheme.bits == 4:
        codes = unpack_pairs(tensor("weight_packed", "uint8"))
    else:
        weight = tensor("weight", "float8_e4m3fn")
        require_numbers(weight, f"{linear.name}.weight")
        if scheme.grid == "fp8":
            require_spanned(weight, scales, f"{linear.name}.weight_scale", scheme.block)
        codes = weight.view(torch.uint8)
    nested = "weight_global_scale"
    static = INPUT_SCALES.get(scheme.activation)
    return QTensor(
        codes,
        scales.reshape(1, 1) if scheme.rows is None else scales,
        None,
        scheme,
        global_scale=scale(nested, "float32") if nested in expected else None,
        input_scale=scale(static, FLOATS).float() if static else None,
    )


def layout(scheme: Scheme, linear: LinearFacts, dtype: str) -> Layout:
    """Dtypes and shapes of the tensors that `encode` returns."""
    outputs, inputs = linear.out_features, linear.in_features
    scales = (scheme.scale_rows(outputs), scheme.groups(inputs))
    found: Layout = {}
    if scheme.bits == 4:
        found["weight_packed"] = ("U8", (outputs, inputs // 2))
    else:
        found["weight"] = ("F8_E4M3", (outputs, inputs))
    stored = (STORED | CODES)[scheme.scale_dtype(dtype)]
    found["weight_scale"] = (stored, (1,) if scheme.rows is None else scales)
    if scheme.grid == "nvfp4":
        found["weight_global_scale"] = ("F32", (1,))
    if name := INPUT_SCALES.get(scheme.activation):
        found[name] = ("F32", (1,))
    return found


def form(scheme: Scheme) -> str:
    """The `format` of a config group."""
    return FORMS[scheme.grid] if scheme.activation or scheme.grid != "fp8" else WEIGHT_ONLY


def arguments(scheme: Scheme) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """`weights` and `input_activations` of a config group."""
    weights: dict[str, Any] = {
        "num_bits": scheme.bits,
        "type": "float",
        "symmetric": True,
        "strategy": _strategy(scheme),
        "group_size": scheme.group_size if scheme.rows == 1 else None,
        "dynamic": False,
    }
    if _strategy(scheme) == "block":
        weights["block_structure"] = [scheme.rows, scheme.group_size]
    if scheme.grid != "fp8":
        kind = f"torch.{scheme.scale_dtype('float32')}"
        weights |= {"scale_dtype": kind, "zp_dtype": kind}
    activations = dict(ACTIVATIONS[scheme.activation]) if scheme.activation else None
    return weights, activations


def _strategy(scheme: Scheme) -> str:
    if scheme.grid == "nvfp4":
        return "tensor_group"
    if scheme.rows == 1:
        return "group" if scheme.group_size else "channel"
    return "tensor" if scheme.rows is None else "block"


def scheme_of(
    layout: object, weights: Mapping[str, Any], activations: Mapping[str, Any] | None
) -> Scheme | None:
    """The scheme of a config group's `weights` and `input_activations`; None if it is not known."""
    for scheme in _schemes():
        ours, theirs = arguments(scheme)
        same = layout in (form(scheme), None) and (activations is None) == (theirs is None)
        if same and _says(weights, ours) and _says(activations or {}, theirs or {}):
            return scheme
    return None


@cache
def _schemes() -> tuple[Scheme, ...]:
    """All that the layouts can hold."""
    eight = (
        Scheme("fp8", 8, None),
        Scheme("fp8", 8, None, activation="fp8-token"),
        Scheme("fp8", 8, None, rows=None),
        Scheme("fp8", 8, None, activation="fp8-tensor", rows=None),
        Scheme("fp8", 8, 128, rows=128),
        Scheme("fp8", 8, 128, activation="fp8-group128", rows=128),
        Scheme("mxfp8", 8, 32),
    )
    nested = Scheme("nvfp4", 4, 16)
    return (*eight, Scheme("mxfp4", 4, 32), nested, Scheme("nvfp4", 4, 16, activation="nvfp4"))


def _says(stated: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether a config states the same arguments; those that it leaves out are as ours."""
    keys = ("num_bits", "type", "symmetric", "strategy", "group_size", "dynamic", "block_structure")
    return all(stated.get(key) in (None, ours.get(key)) for key in keys)


def check(scheme: Scheme, _: LinearFacts) -> str | None:
    """Why the layouts cannot hold this linear; None if they can."""
    if scheme not in _schemes():
        return f"format compressed-tensors has no layout of {scheme.label()}; try: --recipe fp8"
    return None
