"""Which tensors of a checkpoint are weights in 8- or 4-bit floats, and which hold their scales.

DeepSeek's fp8 (V3, V4), FBGEMM's and Mistral's fp8, compressed-tensors' float layouts, ModelOpt's
FP8 and NVFP4, and gpt-oss's MXFP4 differ in names only: codes, scales, at times a second scale of
all scales. Dtypes and shapes in the headers say the rest, so no table of methods is needed, and no
torch until a weight is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from quantkit.checkpoint.coded import Coded, Coding
from quantkit.checkpoint.quantization import quantization_block
from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.scheme import FLOAT_GROUPS

if TYPE_CHECKING:
    import torch

    from quantkit.grid.floats import Block

FP8 = ("F8_E4M3", "F8_E5M2")
BYTES = ("U8", "I8")
"""Of two e2m1 codes each."""
PACKED = ("_packed", "_blocks")
"""Ends of the codes' name that the dense weight's lacks."""
SCALES = ("_scale_inv", "_scale", "_scales")
"""Ends of the scales' name, after the dense weight's."""
BESIDE = ("scale", "qscale_weight")
"""Names of the scales beside a `weight`."""
DIVISOR, FACTOR = "_global_scale", "_scale_2"
"""Ends of the name of the scale of all scales."""
OF_ACTIVATIONS = (
    *("input_scale", "input_global_scale", "input_scale_inv", "activation_scale", "qscale_act"),
    *("output_scale", "k_scale", "v_scale", "q_scale", "prob_scale", "kv_scale", "weight_shape"),
)
"""Tensors of activations and caches that are quantized, and shapes: nothing of the dense model."""


def float_codes(names: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> Coding | None:
    """The weights in 8- and 4-bit floats of a checkpoint; None where it has none.

    Raises:
        InputError: tensors contradict each other, or one is missing.
        RefusedError: a weight has no scale that is known.
    """
    found: dict[str, Coded] = {}
    for dense, coded in _coded(names, _declared(config)):
        if dense in found or (dense in names and dense not in coded.parts.values()):
            raise InputError(f"`{dense}` is in this checkpoint more than once, and in codes")
        found[dense] = coded
    if not found:
        return None
    _require_known(names, found)
    dropped = tuple(n for n in names if n.rpartition(".")[2] in OF_ACTIVATIONS)
    kinds = sorted({_kind(names, each) for each in found.values()})
    coding = Coding(found, dropped, " and ".join(kinds))
    lost = sorted(n for n in names if names[n].dtype in FP8 and n not in coding.parts)
    if 0 < len(lost) < len(found):
        raise InputError(
            f"`{lost[0]}` is in 8-bit floats, and has no scale",
            why=f"{len(lost)} such tensors have none, {len(found)} have one",
            hint="fetch the model again",
        )
    if lost:
        raise RefusedError(
            f"`{lost[0]}` is in 8-bit floats, and its scale was not found",
            why=f"{len(lost)} tensors are; known are scales named {', '.join((*SCALES, *BESIDE))}",
            hint="use the model in bf16",
        )
    return coding


def _coded(names: Mapping[str, TensorInfo], block: Block | None) -> Iterator[tuple[str, Coded]]:
    """Each dense weight, by name, with the tensors that it is stored in."""
    for name, info in names.items():
        if info.dtype not in (*FP8, *BYTES) or name.rpartition(".")[2] in OF_ACTIVATIONS:
            continue
        dense = next((name.removesuffix(end) for end in PACKED if name.endswith(end)), name)
        scales = _scales(names, dense)
        if scales is None or scales == name:
            continue
        if info.dtype in BYTES and not _is_four_bits(info, names[scales]):
            continue
        parts = {"codes": name, "scales": scales}
        parts |= {end: dense + end for end in (DIVISOR, FACTOR) if dense + end in names}
        if info.dtype in BYTES and names[scales].dtype in FP8 and len(parts) != 3:
            raise InputError(
                f"`{name}` is in NVFP4, and has {len(parts) - 2} scales of all its scales, not one",
                why=f"`{dense}{DIVISOR}` or `{dense}{FACTOR}` is expected",
                hint="fetch the model again",
            )
        shape = _shape(info, names[scales])
        if len(shape) not in (2, 3) or 0 in shape:
            raise InputError(
                f"`{name}` has shape {info.shape}, and is no matrix nor a stack of them"
            )
        for end in parts.keys() - {"codes", "scales"}:
            if prod(names[parts[end]].shape) not in (1, shape[0] if len(shape) > 2 else 1):
                raise InputError(
                    f"`{parts[end]}` has shape {names[parts[end]].shape}, not one value"
                )
        swapped = len(info.shape) > len(shape)  # gpt-oss: blocks of outputs, read as (in, out)
        if swapped:
            shape = (*shape[:-2], shape[-1], shape[-2])
        yield dense, Coded(parts, shape, partial(_dense, parts, block=block, swapped=swapped))


def _require_known(names: Mapping[str, TensorInfo], found: Mapping[str, Coded]) -> None:
    """Check that nothing beside the codes changes what they mean.

    Raises:
        RefusedError: a coded linear has a tensor that is not known.
    """
    linears = {n.removesuffix(".weight") for n in found if n.endswith(".weight")}
    parts = {name for each in found.values() for name in each.parts.values()}
    for name in names:
        linear, _, key = name.rpartition(".")
        if linear in linears and name not in parts and key not in ("bias", *OF_ACTIVATIONS):
            raise RefusedError(
                f"`{name}` changes what the codes beside it mean, in a way that is not known",
                why="such tensors scale inputs, shift codes or reorder columns",
                hint="use the model in bf16",
            )


def _kind(names: Mapping[str, TensorInfo], coded: Coded) -> str:
    """What people call the codes of a weight."""
    if names[coded.parts["codes"]].dtype in FP8:
        return "fp8"
    return "nvfp4" if names[coded.parts["scales"]].dtype in FP8 else "mxfp4"


def _scales(names: Mapping[str, TensorInfo], dense: str) -> str | None:
    stem = dense.removesuffix("weight")
    beside = [stem + name for name in BESIDE] if stem != dense else []
    return next((n for n in (*(dense + end for end in SCALES), *beside) if n in names), None)


def _shape(codes: TensorInfo, scales: TensorInfo) -> tuple[int, ...]:
    """The dense weight's shape (.., out, in); a block's codes may have their own dimension."""
    if codes.dtype in FP8:
        return codes.shape
    lead = max(len(scales.shape) - 1, 0)
    if len(codes.shape) - lead > 2:
        return ()  # of no form
    return (*codes.shape[:lead], 2 * prod(codes.shape[lead:]))


def _is_four_bits(codes: TensorInfo, scales: TensorInfo) -> bool:
    """Whether bytes are e2m1 codes, by the groups of the scales: integers have other scales."""
    *lead, width = _shape(codes, scales) or (1,)
    grids = [(*lead, width // group) for group in FLOAT_GROUPS if width % group == 0]
    return scales.dtype in ("F8_E4M3", "F8_E8M0", "U8") and scales.shape in grids


def _dense(
    names: Mapping[str, str],
    parts: Mapping[str, torch.Tensor],
    dtype: str,
    *,
    block: Block | None,
    swapped: bool,
) -> torch.Tensor:
    """The weight (out, in) in `dtype`, or (in, out) where `swapped`; `names` are for people.

    Raises:
        InputError: codes or scales are no numbers, or contradict each other.
    """
    from quantkit.checkpoint.dtypes import TORCH_DTYPES
    from quantkit.grid.floats import dequantize_floats, require_numbers, scales_of

    _require_sound(names, parts, block)
    codes, scales = parts["codes"].flatten(1), scales_of(_flat(parts["scales"]))
    if DIVISOR in parts:
        scales = scales / parts[DIVISOR].float()
    if FACTOR in parts:
        scales = scales * parts[FACTOR].float()
    weight = dequantize_floats(codes, scales, TORCH_DTYPES[dtype], block)
    require_numbers(weight, names["codes"])  # of products that the dtype cannot hold
    return weight.T.contiguous() if swapped else weight


def _flat(scales: torch.Tensor) -> torch.Tensor:
    """Scales of blocks as ModelOpt writes them, (rows, 1, columns, 1), as a matrix."""
    return scales if scales.ndim != 4 else scales.reshape(scales.shape[0], scales.shape[2])


def _require_sound(
    names: Mapping[str, str], parts: Mapping[str, torch.Tensor], block: Block | None
) -> None:
    from quantkit.grid.floats import require_numbers, require_scales, require_spanned

    codes, scales = parts["codes"].flatten(1), _flat(parts["scales"])
    require_scales(scales, names["scales"])
    for end in parts.keys() - {"codes", "scales"}:
        require_scales(parts[end], names[end], positive=True)
    if codes.is_floating_point():
        require_numbers(codes, names["codes"])
        require_spanned(codes, scales, names["scales"], block)


def _declared(config: Mapping[str, Any]) -> Block | None:
    """The size of a block (rows, columns) that a config declares."""
    stated = quantization_block(config) or {}
    groups = stated.get("config_groups")
    weights = [
        g["weights"]
        for g in (groups.values() if isinstance(groups, Mapping) else ())
        if isinstance(g, Mapping) and isinstance(g.get("weights"), Mapping)
    ]
    found = [stated.get("weight_block_size"), *(w.get("block_structure") for w in weights)]
    return next(filter(None, map(_sizes, found)), None)


def _sizes(stated: object) -> Block | None:
    """Rows and columns from a list, or from "128x128" as compressed-tensors once wrote it."""
    if isinstance(stated, str):
        stated = [int(n) for n in stated.split("x") if n.isdecimal()]
    if isinstance(stated, list) and len(stated) == 2 and all(_is_size(n) for n in stated):
        return stated[0], stated[1]
    return None


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0
