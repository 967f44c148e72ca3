"""GPTQ's checkpoint layout, version 1, symmetric (AutoGPTQ); nearly every engine reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import STORED, Layout, LinearFacts, ModelFacts
from quantkit.core.format import BLOCK, Format, parser, stored_tensor
from quantkit.core.patterns import Patterns
from quantkit.core.scheme import Scheme
from quantkit.core.version import __version__

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor

BITS = (2, 3, 4, 8)
FOUND = ("transformer.h", "model.decoder.layers", "gpt_neox.layers", "model.layers")
"""Paths of blocks that transformers finds by itself (optimum 2.3)."""


def encode(
    qtensor: QTensor, _dtype: str = "float32", *, zero_offset: int
) -> dict[str, torch.Tensor]:
    """The tensors of one linear: codes packed along the inputs, zero points along the outputs.

    qweight: int32 (K*bits/32, O). qzeros: int32 (G, O*bits/32), zero points less `zero_offset`,
    which is 1 in version 1 and 0 in version 2. scales: (G, O) in the dtype of `qtensor.scales`.
    g_idx: int32 (K,), the group of each input. `qtensor` is not modified.

    `g_idx` is always sequential: vLLM drops it without an error, and transformers reads
    uninitialized memory if it is missing.
    """
    import torch

    from quantkit.grid.packing import pack

    scheme, codes, scales = qtensor.scheme, qtensor.codes, qtensor.scales
    zeros = qtensor.zeros
    if zeros is None:
        zeros = torch.full_like(scales, 1 << (scheme.bits - 1), dtype=torch.uint8)
    return {
        "qweight": pack(codes, scheme.bits).T.contiguous(),
        "qzeros": pack((zeros - zero_offset).T, scheme.bits),
        "scales": scales.T.contiguous(),
        "g_idx": _sequential(codes.shape[1], scales.shape[1], codes.device),
    }


def decode(
    tensors: Mapping[str, torch.Tensor], scheme: Scheme, linear: LinearFacts, *, zero_offset: int
) -> QTensor:
    """The QTensor of `linear`: codes uint8 (O, K), scales (O, G), zeros uint8 (O, G) or None.

    Also reads files of other tools, if their groups are in order.

    Raises:
        InputError: a tensor is missing or has another dtype or shape, or zero points contradict
            the scheme.
        RefusedError: the groups are not in order, or a zero point is ambiguous.
    """
    import torch

    from quantkit.grid.packing import unpack
    from quantkit.grid.qtensor import QTensor

    outputs, inputs, bits = linear.out_features, linear.in_features, scheme.bits
    shapes = {suffix: shape for suffix, (_, shape) in layout(scheme, linear, "").items()}
    qweight = stored_tensor(tensors, linear, "qweight", "int32", shapes["qweight"])
    qzeros = stored_tensor(tensors, linear, "qzeros", "int32", shapes["qzeros"])
    floats = "float16 bfloat16 float32"
    scales = stored_tensor(tensors, linear, "scales", floats, shapes["scales"])
    if "g_idx" in tensors:
        g_idx = stored_tensor(tensors, linear, "g_idx", "int32", shapes["g_idx"])
        if not torch.equal(g_idx, _sequential(inputs, len(scales), g_idx.device)):
            raise RefusedError(
                f"`{linear.name}` was quantized with `desc_act`: its groups are not in order",
                why="vLLM ignores `g_idx` and would load wrong weights without an error",
                hint="use a checkpoint quantized with `desc_act=false`",
            )
    zeros = unpack(qzeros, bits, outputs).T.contiguous()
    # Version 1 stores z - 1. Some loaders add 0x11111111 to a whole word of 4-bit zeros, so that
    # all ones carry into the next one; others wrap within the code.
    if zero_offset and bool((zeros == (1 << bits) - 1).any()):
        raise RefusedError(
            f"`{linear.name}.qzeros` contains all-ones codes, which engines read differently",
            hint="use a checkpoint in format gptq_v2",
        )
    zeros += zero_offset
    if scheme.symmetric and bool((zeros != 1 << (bits - 1)).any()):
        raise InputError(
            f"`{linear.name}.qzeros` contains values other than {1 << (bits - 1)}",
            why="its config has `sym: true`, and vLLM then ignores zero points",
        )
    codes = unpack(qweight.T, bits, inputs)
    return QTensor(codes, scales.T.contiguous(), None if scheme.symmetric else zeros, scheme)


def layout(scheme: Scheme, linear: LinearFacts, dtype: str) -> Layout:
    """Dtypes and shapes of the tensors that `encode` returns; a model of `dtype`."""
    outputs, inputs, bits = linear.out_features, linear.in_features, scheme.bits
    groups = scheme.groups(inputs)
    return {
        "qweight": ("I32", (inputs * bits // 32, outputs)),
        "qzeros": ("I32", (groups, outputs * bits // 32)),
        "scales": (STORED[scheme.scale_dtype(dtype)], (groups, outputs)),
        "g_idx": ("I32", (inputs,)),
    }


def config(model: ModelFacts, layout: str) -> dict[str, Any]:
    """The block that transformers, GPTQModel, vLLM and SGLang read.

    Dense linears are excluded in two fields. transformers reads only
    `modules_in_block_to_quantize`, of the blocks that it finds or that are named, GPTQModel and
    SGLang read only the negative rules of `dynamic`, and vLLM reads both. Towers are in the rules.
    """
    scheme = model.one_scheme(layout)
    block: dict[str, Any] = {
        "quant_method": "gptq",
        "bits": scheme.bits,
        "group_size": scheme.group_size or -1,
        "sym": scheme.symmetric,
        "desc_act": False,
        "checkpoint_format": layout,
        "format": layout,
        "pack_dtype": "int32",
        "lm_head": False,
        "meta": {"quantizer": [f"quantkit:{__version__}"]},
    }
    if model.block_module and not model.block_module.startswith(FOUND):
        block["block_name_to_quantize"] = model.block_module
    left_out = [name for name in model.dense if _in_block(name)]
    if left_out:
        rules = (name.replace(".", r"\.") for name in (*left_out, *model.dense_experts))
        block["dynamic"] = {f"-:^{rule}$": {} for rule in rules}
    prefix = f"{model.block_prefix}."
    if beside := [name for name in left_out if name.startswith(prefix)]:
        block["modules_in_block_to_quantize"] = [_quantized(model, beside)]
    return block


@dataclass(frozen=True)
class _Rules:
    """A block, its `dynamic` rules as patterns, and what each says: None of what stays dense."""

    config: Mapping[str, Any]
    patterns: Patterns
    overrides: Sequence[Mapping[str, Any] | None]


def _rules(config: Mapping[str, Any]) -> _Rules:
    """The rules of a block.

    Raises:
        InputError: a pattern is not valid, or there are too many.
    """
    dynamic: Mapping[str, Any] = config.get("dynamic") or {}
    patterns = [key[2:] if key[:2] in ("+:", "-:") else key for key in dynamic]
    overrides = [None if key[:2] == "-:" else dict(said) for key, said in dynamic.items()]
    return _Rules(config, Patterns(patterns, BLOCK), overrides)


def _scheme_of(rules: _Rules, name: str) -> Scheme | None:
    """The scheme of linear `name`, with GPTQModel's per-module overrides; None if it is dense.

    Raises:
        InputError: bits or group size are not those of a GPTQ checkpoint.
    """
    config = rules.config
    stated = dict(config)
    covering = rules.patterns.first(name)
    if covering is not None:
        override = rules.overrides[covering]
        if override is None:
            return None
        stated.update(override)
    in_block = _in_block(name)
    if not in_block and not config.get("lm_head"):
        return None
    kept = config.get("modules_in_block_to_quantize")
    if in_block and kept and not name.endswith(tuple(_flat(kept))):
        return None
    bits, size, symmetric = stated.get("bits"), stated.get("group_size"), stated.get("sym", True)
    if bits not in BITS or not isinstance(size, int) or not (size > 0 or size == -1):
        raise InputError(
            f"the quantization config has bits {bits!r} and group_size {size!r} for `{name}`",
            why=f"GPTQ allows {', '.join(map(str, BITS))} bits and a positive group_size or -1",
        )
    return Scheme("int", bits, None if size == -1 else size, bool(symmetric))


parse = parser(_rules, _scheme_of)


def fault(scheme: Scheme, linear: LinearFacts, layout: str) -> str | None:
    """Why the layout, version 1 or 2, cannot hold this linear; None if it can."""
    if scheme.grid != "int" or scheme.activation:
        return f"format {layout} stores integer weights only, not {scheme.label()}"
    if scheme.bits not in BITS:
        return f"format {layout} stores 2, 3, 4 or 8 bits, not {scheme.bits}; try: --bits 4"
    inputs, outputs = linear.in_features, linear.out_features
    if inputs * scheme.bits % 32 or outputs * scheme.bits % 32:
        return (
            f"format {layout} packs 32-bit words: {scheme.bits} bits x {inputs} inputs and x "
            f"{outputs} outputs must be multiples of 32; try: --format compressed-tensors"
        )
    if scheme.group_size and inputs % scheme.group_size:
        return f"group size {scheme.group_size} does not divide {inputs} inputs"
    return None


def is_layout(config: Mapping[str, Any], layout: str) -> bool:
    """Whether a config block is GPTQ's, in this layout; version 1 if it names none."""
    stated = config.get("checkpoint_format") or config.get("format") or "gptq"
    return config.get("quant_method") == "gptq" and stated == layout


def _check(scheme: Scheme, linear: LinearFacts) -> str | None:
    if not scheme.symmetric:
        return (
            "format gptq cannot store asymmetric zero points: it stores zero - 1, and engines "
            "read a wrapped value differently; try: --format gptq-v2"
        )
    return fault(scheme, linear, "gptq")


def _sequential(inputs: int, groups: int, device: torch.device) -> torch.Tensor:
    """int32 (inputs,): the group of each input, for `groups` equal groups in order."""
    import torch

    return torch.arange(inputs, dtype=torch.int32, device=device) // (inputs // groups)


def _in_block(name: str) -> bool:
    """Whether a module is one of a numbered list, in the decoder or in a tower beside it."""
    return any(part.isdigit() for part in name.split("."))


def _quantized(model: ModelFacts, left_out: list[str]) -> list[str]:
    """Suffixes of the quantized linears, or full names if a suffix also matches a dense linear."""
    names = []
    for name in model.schemes:
        suffix = name
        for blocks in (model.block_prefix, model.block_module):
            if name.startswith(f"{blocks}."):
                suffix = name.removeprefix(f"{blocks}.").partition(".")[2]
        names.append(name if any(suffix in other for other in left_out) else suffix)
    return list(dict.fromkeys(names))


def _flat(names: Any) -> list[str]:
    return [n for part in names for n in ([part] if isinstance(part, str) else part)]


FORMAT = Format(
    name="gptq",
    summary="GPTQ version 1: 2, 3, 4, 8 bits, symmetric",
    quant_method="gptq",
    encode=partial(encode, zero_offset=1),
    decode=partial(decode, zero_offset=1),
    layout=layout,
    config=lambda model: config(model, "gptq"),
    parse=parse,
    check=_check,
    matches=lambda block: is_layout(block, "gptq"),
)
