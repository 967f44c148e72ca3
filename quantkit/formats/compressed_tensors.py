"""compressed-tensors' integer layouts (llm-compressor, vLLM): packed weights, and W8A8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import STORED, Layout, LinearFacts, ModelFacts
from quantkit.core.format import Format, parser, regex_covers, stored_tensor
from quantkit.core.scheme import Scheme, word_count

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor

NAME = "compressed-tensors"
PACKED, PLAIN = "pack-quantized", "int-quantized"
BITS = (2, 3, 4, 8)
FLOATS = "float16 bfloat16 float32"


def encode(qtensor: QTensor, _dtype: str = "float32") -> dict[str, torch.Tensor]:
    """Weights of W8A8 as int8, all others as a dense bit stream along the inputs.

    3 bits so since compressed-tensors 0.18; before, a word held ten codes and two empty bits.
    """
    import torch

    from quantkit.grid.packing import pack

    codes, bits, zeros = qtensor.codes, qtensor.scheme.bits, qtensor.zeros
    if qtensor.scheme.activation:
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
    """The QTensor of `linear`."""
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
            hint="a checkpoint with `actorder: weight` or none",
        )
    stated = stored_tensor(tensors, linear, "weight_shape", "int64 int32", (2,))
    if stated.tolist() != [outputs, inputs]:
        raise InputError(f"`{linear.name}.weight_shape` is {stated.tolist()}, not the weight's")
    packed = stored_tensor(tensors, linear, "weight_packed", "int32", shapes["weight_packed"])
    zeros = None
    if not scheme.symmetric:
        name = "weight_zero_point"
        words = stored_tensor(tensors, linear, name, "int32", shapes[name])
        zeros = unpack(words, scheme.bits, outputs, dim=0)
    return QTensor(unpack(packed, scheme.bits, inputs), scales, zeros, scheme)


def layout(scheme: Scheme, linear: LinearFacts, dtype: str) -> Layout:
    """Tensors of each linear; W8A8 keeps the weight's own name."""
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


def config(model: ModelFacts) -> dict[str, Any]:
    """The block that transformers, vLLM and SGLang read: a group for each scheme.

    A single scheme targets the class `Linear`; several name their linears, so that no linear
    matches two groups, whose merging engines do differently.
    """
    schemes = model.by_scheme()
    layouts = {_layout(scheme) for scheme in schemes}
    return {
        "quant_method": NAME,
        "format": layouts.pop() if len(layouts) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": {
            f"group_{i}": _group(scheme, ["Linear"] if len(schemes) == 1 else names)
            for i, (scheme, names) in enumerate(schemes.items())
        },
        "ignore": list(model.dense),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


@parser
def parse(config: Mapping[str, Any], name: str) -> Scheme | None:
    """The scheme of linear `name`, None if it is dense: names before regexes before classes."""
    if any(_covers(target, name) for target in config.get("ignore") or ()):
        return None
    groups = list((config.get("config_groups") or {}).values())
    named = [g for g in groups if name in g["targets"]]
    named += [g for g in groups if any(_covers(target, name) for target in g["targets"])]
    named += [g for g in groups if "Linear" in g["targets"]]
    return _scheme(named[0], config) if named else None


def check(scheme: Scheme, linear: LinearFacts) -> str | None:
    """What the layouts cannot hold."""
    if scheme.grid != "int" or scheme.bits not in BITS:
        return f"format {NAME} holds 2, 3, 4 or 8-bit integers, not {scheme.label()}; try: --bits 4"
    if linear.transposed:
        return f"format {NAME} has no place for GPT-2's Conv1D; try: --format gptq"
    if scheme.activation and (scheme.bits, scheme.group_size, scheme.symmetric) != (8, None, True):
        return (
            f"format {NAME} quantizes activations only beside 8-bit symmetric weights with one "
            "scale per channel; try: --bits 8 --group-size channel --symmetric"
        )
    if scheme.group_size and linear.in_features % scheme.group_size:
        return f"group size {scheme.group_size} does not divide {linear.in_features} inputs"
    return None


def _layout(scheme: Scheme) -> str:
    return PLAIN if scheme.activation else PACKED


def _group(scheme: Scheme, targets: list[str]) -> dict[str, Any]:
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
    return {
        "targets": targets,
        "format": _layout(scheme),
        "weights": weights,
        "input_activations": activations if scheme.activation else None,
        "output_activations": None,
    }


def _scheme(group: Mapping[str, Any], config: Mapping[str, Any]) -> Scheme:
    layout = group.get("format") or config.get("format")
    weights, activations = group.get("weights") or {}, group.get("input_activations")
    strategy, bits, size = (weights.get(k) for k in ("strategy", "num_bits", "group_size"))
    scheme = Scheme(
        "int",
        bits if isinstance(bits, int) else 0,
        size if strategy == "group" else None,
        bool(weights.get("symmetric", True)),
        "int8-token" if activations else None,
    )
    known = (
        weights.get("type", "int") == "int"
        and scheme.bits in BITS
        and strategy in ("group", "channel")
        and (strategy == "channel" or (isinstance(size, int) and size > 0))
        and weights.get("actorder") in (None, False, "weight", "static")
        and layout == _layout(scheme)
    )
    if activations:
        asked = tuple(activations.get(k) for k in ("num_bits", "type", "strategy", "dynamic"))
        known &= asked == (8, "int", "token", True) and activations.get("symmetric", True)
        known &= (bits, strategy, scheme.symmetric) == (8, "channel", True)
    if not known:
        raise RefusedError(
            f"this scheme of compressed-tensors' layout `{layout}` is not read",
            why=f"weights: {weights}; input_activations: {activations}",
            hint="integer weights by group or channel; 8-bit activations by token, dynamic",
        )
    return scheme


def _covers(target: str, name: str) -> bool:
    if not isinstance(target, str):
        raise InputError(f"`{target}` in the quantization config is no target")
    return regex_covers(target[3:], name) if target.startswith("re:") else target == name


FORMAT = Format(
    name=NAME,
    summary="compressed-tensors: 2, 3, 4, 8 bits packed, symmetric and asymmetric; W8A8",
    quant_method=NAME,
    encode=encode,
    decode=decode,
    layout=layout,
    config=config,
    parse=parse,
    check=check,
    matches=lambda block: block.get("quant_method") == NAME,
)
