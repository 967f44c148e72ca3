"""compressed-tensors' integer layouts (llm-compressor, vLLM): packed weights and W8A8."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
Group = Mapping[str, Any] | None
"""A config group; None is what stays dense."""


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


def config(model: ModelFacts) -> dict[str, Any]:
    """The block that transformers, vLLM and SGLang read, with one config group per scheme.

    A single scheme targets the class `Linear`, which in vLLM routers are, too. Several schemes list
    their linears by name: engines merge groups differently if a linear matches two of them.
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
        "ignore": list(model.unquantized),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


@dataclass(frozen=True)
class _Rules:
    """A block's targets: `named` in full, or as `(regex, group)`; a group of None is ignored."""

    config: Mapping[str, Any]
    named: Mapping[str, Group]
    patterns: tuple[tuple[str, Group], ...]


def _rules(config: Mapping[str, Any]) -> _Rules:
    """The targets of a block, the first group of each.

    Raises:
        InputError: a target is not text.
    """
    named: dict[str, Group] = {}
    patterns = []
    groups = ((g["targets"], g) for g in (config.get("config_groups") or {}).values())
    for targets, group in ((config.get("ignore") or (), None), *groups):
        for target in targets:
            if not isinstance(target, str):
                raise InputError(f"`{target}` in the quantization config is not a valid target")
            if target.startswith("re:"):
                patterns.append((target[3:], group))
            else:
                named.setdefault(target, group)
    return _Rules(config, named, tuple(patterns))


def _scheme_of(rules: _Rules, name: str) -> Scheme | None:
    """The scheme of linear `name`, None if it is dense.

    What is ignored comes first, then full names, regular expressions, and the class `Linear`.

    Raises:
        RefusedError: the scheme is not supported.
        InputError: a regular expression is invalid.
    """
    ignored = (group is None and regex_covers(regex, name) for regex, group in rules.patterns)
    if any(ignored):
        return None
    covering = (group for regex, group in rules.patterns if regex_covers(regex, name))
    found = rules.named[name] if name in rules.named else next(covering, rules.named.get("Linear"))
    return None if found is None else _scheme(found, rules.config)


parse = parser(_rules, _scheme_of)


def check(scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why the layouts cannot hold this linear; None if they can."""
    if scheme.grid != "int" or scheme.bits not in BITS:
        return f"format {NAME} stores 2, 3, 4 or 8-bit weights, not {scheme.label()}; try: --bits 4"
    if linear.transposed:
        return f"format {NAME} cannot store GPT-2's transposed Conv1D weights; try: --format gptq"
    if scheme.activation and (scheme.bits, scheme.group_size, scheme.symmetric) != (8, None, True):
        return (
            f"format {NAME} quantizes activations only with 8-bit symmetric weights and one "
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
            f"unsupported scheme in compressed-tensors layout `{layout}`",
            why=f"weights: {weights}; input_activations: {activations}",
            hint="use integer weights per group or channel; activations 8-bit, dynamic, per token",
        )
    return scheme


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
