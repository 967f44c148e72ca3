"""Integer linears of compressed-tensors: packed weights, and int8 weights for W8A8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import STORED, Layout, LinearFacts
from quantkit.core.format import stored_tensor
from quantkit.core.scheme import Scheme, word_count

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor

PACKED, PLAIN = "pack-quantized", "int-quantized"
FLOATS = "float16 bfloat16 float32"


def encode(qtensor: QTensor, _dtype: str = "float32") -> dict[str, torch.Tensor]:
    """The tensors of one linear: int8 weights for W8A8, else a dense bit stream along the inputs.

    W8A8: weight int8 (O, K), weight_scale (O, 1). Otherwise: weight_packed int32
    (O, ceil(K*bits/32)), weight_scale (O, G), weight_shape int64 (2,), and, if asymmetric,
    weight_zero_point int32 (ceil(O*bits/32), G), packed along the outputs. Codes and zero points
    are stored unsigned in packed form. `qtensor` is not modified.
    """
    # The bit stream is dense since compressed-tensors 0.18. Before, a word held ten 3-bit codes and
    # two empty bits under the same format name; 2, 4 and 8 bits are the same in both.
    import torch

    from quantkit.grid.packing import pack

    codes, bits, zeros = qtensor.codes, qtensor.scheme.bits, qtensor.zeros
    if qtensor.scheme.activation:
        # Flipping the top bit of an unsigned code gives the two's complement of code - 128.
        return {"weight": (codes ^ 128).view(torch.int8), "weight_scale": qtensor.scales}
    out = {
        "weight_packed": pack(codes, bits),
        "weight_scale": qtensor.scales,
        "weight_shape": torch.tensor(codes.shape, dtype=torch.int64, device=codes.device),
    }
    if zeros is not None:
        out["weight_zero_point"] = pack(zeros, bits, dim=0)
    return out


def decode(tensors: Mapping[str, torch.Tensor], scheme: Scheme, linear: LinearFacts) -> QTensor:
    """The QTensor of `linear`: codes uint8 (O, K), scales (O, G), zeros uint8 (O, G) or None.

    Raises:
        InputError: a tensor is missing or has another dtype or shape.
        RefusedError: the columns are in act-order.
    """
    import torch

    from quantkit.grid.packing import unpack
    from quantkit.grid.qtensor import QTensor

    outputs, inputs = linear.out_features, linear.in_features
    shapes = {suffix: shape for suffix, (_, shape) in layout(scheme, linear, "").items()}
    scales = stored_tensor(tensors, linear, "weight_scale", FLOATS, shapes["weight_scale"])
    if scheme.activation:
        weight = stored_tensor(tensors, linear, "weight", "int8", shapes["weight"])
        return QTensor(weight.view(torch.uint8) ^ 128, scales, None, scheme)
    if "weight_g_idx" in tensors:
        raise RefusedError(
            f"`{linear.name}` was quantized with group act-order",
            hint="use a checkpoint quantized with `actorder: weight` or without act-order",
        )
    stated = stored_tensor(tensors, linear, "weight_shape", "int64 int32", (2,)).cpu()
    if stated.tolist() != [outputs, inputs]:
        raise InputError(
            f"`{linear.name}.weight_shape` is {stated.tolist()}, not the weight's shape"
        )
    packed = stored_tensor(tensors, linear, "weight_packed", "int32", shapes["weight_packed"])
    zeros = None
    if not scheme.symmetric:
        name = "weight_zero_point"
        words = stored_tensor(tensors, linear, name, "int32", shapes[name])
        zeros = unpack(words, scheme.bits, outputs, dim=0)
    return QTensor(unpack(packed, scheme.bits, inputs), scales, zeros, scheme)


def layout(scheme: Scheme, linear: LinearFacts, dtype: str) -> Layout:
    """Dtypes and shapes of the tensors that `encode` returns; W8A8 keeps the name `weight`."""
    outputs, inputs, bits = linear.out_features, linear.in_features, scheme.bits
    groups = scheme.groups(inputs)
    scale = (STORED[scheme.scale_dtype(dtype)], (outputs, groups))
    if scheme.activation:
        return {"weight": ("I8", (outputs, inputs)), "weight_scale": scale}
    found: Layout = {
        "weight_packed": ("I32", (outputs, word_count(inputs, bits))),
        "weight_scale": scale,
        "weight_shape": ("I64", (2,)),
    }
    if not scheme.symmetric:
        found["weight_zero_point"] = ("I32", (word_count(outputs, bits), groups))
    return found


def form(scheme: Scheme) -> str:
    """The `format` of a config group."""
    return PLAIN if scheme.activation else PACKED


def arguments(scheme: Scheme) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """`weights` and `input_activations` of a config group."""
    weights = {
        "num_bits": scheme.bits,
        "type": "int",
        "symmetric": scheme.symmetric,
        "strategy": "group" if scheme.group_size else "channel",
        "group_size": scheme.group_size,
        "dynamic": False,
        "actorder": None,
    }
    activations = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "token",
        "dynamic": True,
    }
    return weights, activations if scheme.activation else None


def scheme_of(
    layout: object, weights: Mapping[str, Any], activations: Mapping[str, Any] | None
) -> Scheme | None:
    """The scheme of a config group's `weights` and `input_activations`; None if it is not known."""
    strategy, bits, size = (weights.get(k) for k in ("strategy", "num_bits", "group_size"))
    scheme = Scheme(
        "int",
        bits if isinstance(bits, int) else 0,
        size if strategy == "group" else None,
        bool(weights.get("symmetric", True)),
        "int8-token" if activations else None,
    )
    known = (
        scheme.bits in scheme.kind.bits
        and strategy in ("group", "channel")
        and (strategy == "channel" or (isinstance(size, int) and size > 0))
        and weights.get("actorder") in (None, False, "weight", "static")
        and layout == form(scheme)
    )
    if activations:
        asked = tuple(activations.get(k) for k in ("num_bits", "type", "strategy", "dynamic"))
        known &= asked == (8, "int", "token", True) and activations.get("symmetric", True)
        known &= (bits, strategy, scheme.symmetric) == (8, "channel", True)
    return scheme if known else None


def check(scheme: Scheme, _: LinearFacts) -> str | None:
    """Why the layouts cannot hold this linear; None if they can."""
    if scheme.activation and (scheme.bits, scheme.group_size, scheme.symmetric) != (8, None, True):
        return (
            "format compressed-tensors quantizes activations only with 8-bit symmetric weights and "
            "one scale per channel; try: --bits 8 --group-size channel --symmetric"
        )
    return None
