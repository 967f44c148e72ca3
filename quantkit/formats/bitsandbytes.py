"""bitsandbytes' 4-bit checkpoint layout: NF4 (QLoRA, arXiv 2305.14314, section 3)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quantkit.core.errors import InputError, RefusedError
from quantkit.core.facts import Layout, LinearFacts, ModelFacts
from quantkit.core.format import Format, parser, stored_tensor
from quantkit.core.scheme import NESTED_SIZE, Scheme

if TYPE_CHECKING:
    import torch

    from quantkit.grid.qtensor import QTensor

STATE = "weight.quant_state.bitsandbytes__nf4"
LONGEST_STATE = 4096  # bytes read of a quant state; a file may claim any size
LONGEST_FLOAT = 24  # characters of the longest repr of a float, such as -2.2250738585072014e-308


def encode(qtensor: QTensor, dtype: str = "float32") -> dict[str, torch.Tensor]:
    """The tensors of one linear: packed codes, absmax, code book, and bitsandbytes' quant state.

    weight: uint8 (ceil(O*K/2), 1), two codes per byte, the first in the high nibble.
    weight.absmax: fp32 (blocks,), or uint8 (blocks,) with double quantization, which adds
    weight.nested_absmax, fp32 (ceil(blocks/256),), and its code book, fp32 (256,).
    `dtype` is the one that engines dequantize to. `qtensor` is not modified.
    """
    import torch

    from quantkit.grid.dynamic8 import dynamic_book
    from quantkit.grid.normal4 import NF4
    from quantkit.grid.packing import pack_nibbles

    device, nested, shape = qtensor.codes.device, qtensor.nested, tuple(qtensor.codes.shape)
    offset = 0.0 if nested is None else nested.offset.item()
    state = _state(qtensor.scheme, shape, dtype, offset)
    out = {
        "weight": pack_nibbles(qtensor.codes, high_first=True)[:, None],
        "weight.absmax": qtensor.scales if nested is None else nested.codes,
        "weight.quant_map": NF4.to(device),
        STATE: torch.tensor(list(state), dtype=torch.uint8, device=device),
    }
    if nested is not None:
        out |= {
            "weight.nested_absmax": nested.absmax,
            "weight.nested_quant_map": dynamic_book().to(device),
        }
    return out


def decode(tensors: Mapping[str, torch.Tensor], scheme: Scheme, linear: LinearFacts) -> QTensor:
    """The QTensor of `linear`, with codes uint8 (O, K) and scales fp32 (blocks,).

    Block size and double quantization are taken from the tensor's quant state: the config block
    does not state the block size.

    Raises:
        InputError: a tensor is missing or has another dtype or shape, or the state is damaged.
        RefusedError: the quant state or a code book is not bitsandbytes' NF4.
    """
    import torch

    from quantkit.grid.dynamic8 import dynamic_book, nested_scales
    from quantkit.grid.normal4 import NF4
    from quantkit.grid.packing import unpack_nibbles
    from quantkit.grid.qtensor import DoubleQuant, QTensor

    shape = (linear.out_features, linear.in_features)
    size = shape[0] * shape[1]
    state = _read_state(tensors, linear, shape)
    block = state["blocksize"]
    blocks = -(-size // block)
    packed = stored_tensor(tensors, linear, "weight", "uint8", (-(-size // 2), 1))
    codes = unpack_nibbles(packed, size, high_first=True).view(shape)
    book = stored_tensor(tensors, linear, "weight.quant_map", "float32", (16,))
    _same_book(book, NF4, linear)
    nested = None
    if "nested_offset" in state:
        absmax_codes = stored_tensor(tensors, linear, "weight.absmax", "uint8", (blocks,))
        outer = (-(-blocks // NESTED_SIZE),)
        absmax = stored_tensor(tensors, linear, "weight.nested_absmax", "float32", outer)
        book = stored_tensor(tensors, linear, "weight.nested_quant_map", "float32", (256,))
        _same_book(book, dynamic_book(), linear)
        offset = torch.tensor(state["nested_offset"], dtype=torch.float32, device=codes.device)
        nested = DoubleQuant(absmax_codes, absmax, offset)
        scales = nested_scales(nested)
    else:
        scales = stored_tensor(tensors, linear, "weight.absmax", "float32", (blocks,))
    found = replace(scheme, group_size=block, double_quant=nested is not None)
    return QTensor(codes, scales, None, found, nested)


def layout(scheme: Scheme, linear: LinearFacts, dtype: str) -> Layout:
    """Dtypes and shapes of the tensors that `encode` returns; codes keep the name `weight`."""
    shape = (linear.out_features, linear.in_features)
    size = shape[0] * shape[1]
    blocks = -(-size // (scheme.group_size or size))
    found: Layout = {
        "weight": ("U8", (-(-size // 2), 1)),
        "weight.absmax": ("U8" if scheme.double_quant else "F32", (blocks,)),
        "weight.quant_map": ("F32", (16,)),
        STATE: ("U8", (len(_state(scheme, shape, dtype, 0.0)),)),
    }
    if scheme.double_quant:
        found["weight.nested_absmax"] = ("F32", (-(-blocks // NESTED_SIZE),))
        found["weight.nested_quant_map"] = ("F32", (256,))
    return found


def config(model: ModelFacts) -> dict[str, Any]:
    """The block that transformers and SGLang read.

    The quant type must be stated because the default is fp4. A skip list replaces the default one,
    so it must name the output head.
    """
    scheme = model.one_scheme("bitsandbytes")
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": scheme.double_quant,
        "bnb_4bit_compute_dtype": model.dtype,
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_skip_modules": list(model.dense),
    }


def _scheme_of(config: Mapping[str, Any], name: str) -> Scheme | None:
    """The scheme of linear `name`, None if it is dense.

    The block size is bitsandbytes' default, 64; `decode` replaces it with the stored one.

    Raises:
        RefusedError: the weights are not NF4, or not stored as uint8.
    """
    kind = config.get("bnb_4bit_quant_type", "fp4")
    storage = config.get("bnb_4bit_quant_storage", "uint8")
    if not (config.get("load_in_4bit") or config.get("_load_in_4bit")) or kind != "nf4":
        raise RefusedError("bitsandbytes weights must be nf4", why="int8 and fp4 are not supported")
    if storage != "uint8":
        raise RefusedError(f"bitsandbytes storage type `{storage}` is not supported, only uint8")
    in_block = any(part.isdigit() for part in name.split("."))
    skipped = config.get("llm_int8_skip_modules") or ()
    if not in_block or any(f".{part}." in f".{name}." for part in skipped):
        return None
    double = bool(config.get("bnb_4bit_use_double_quant"))
    return Scheme("nf4", 4, 64, symmetric=True, double_quant=double)


parse = parser(dict, _scheme_of)


def check(scheme: Scheme, linear: LinearFacts) -> str | None:
    """Why the layout cannot hold this linear; None if it can."""
    if scheme.grid != "nf4":
        return f"format bitsandbytes stores NF4, not {scheme.label()}; try: --method nf4"
    size = scheme.group_size or 0
    if size & (size - 1) or not 32 <= size <= 4096:
        given = scheme.group_size or "channel"
        return f"bitsandbytes block sizes are powers of two from 32 to 4096, not {given}"
    if linear.in_features % size:
        return (
            f"bitsandbytes on a CPU misreads blocks of {size} that cross rows of "
            f"{linear.in_features} inputs, without an error; try: --group-size 32"
        )
    return None


def _state(scheme: Scheme, shape: tuple[int, ...], dtype: str, offset: float) -> bytes:
    """The quant state of one linear, as the bytes of a JSON object.

    Trailing blanks pad `offset` to a fixed width: `layout` must know the length of the tensor
    before the offset is computed.
    """
    state: dict[str, Any] = {
        "quant_type": "nf4",
        "blocksize": scheme.group_size,
        "dtype": dtype,
        "shape": list(shape),
    }
    blanks = 0
    if scheme.double_quant:
        state |= {
            "nested_blocksize": NESTED_SIZE,
            "nested_dtype": "float32",
            "nested_offset": offset,
        }
        blanks = LONGEST_FLOAT - len(repr(offset))
    # Formats may not import json. For strings, numbers and a list the repr is JSON, quotes aside.
    return (str(state).replace("'", '"') + " " * blanks).encode()


def _read_state(
    tensors: Mapping[str, torch.Tensor], linear: LinearFacts, shape: tuple[int, int]
) -> dict[str, Any]:
    """The quant state of `linear`, whose weight has `shape` (O, K).

    Raises:
        InputError: it is missing or damaged, or states another shape.
        RefusedError: it is not NF4, or its block sizes are not supported.
    """
    raw = tensors.get(STATE)
    length = 0 if raw is None else min(raw.numel(), LONGEST_STATE)
    raw = stored_tensor(tensors, linear, STATE, "uint8", (length,))
    try:
        state = ast.literal_eval(bytes(raw.cpu().tolist()).decode().strip())
        size, offset = state["blocksize"], state.get("nested_offset", 0.0)
        known = state["quant_type"] == "nf4" and isinstance(offset, float)
        known &= isinstance(size, int) and 32 <= size <= 4096
        stated = tuple(state.get("shape", ()))
        known &= state.get("nested_blocksize", NESTED_SIZE) == NESTED_SIZE
    except (ValueError, SyntaxError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"cannot read `{linear.name}.{STATE}`", why=str(error)) from error
    if not known:
        raise RefusedError(f"`{linear.name}` has an unsupported quant state", why=str(state))
    if stated != shape:
        raise InputError(f"`{linear.name}` has shape {state.get('shape')}, not {list(shape)}")
    return dict(state)


def _same_book(found: torch.Tensor, known: torch.Tensor, linear: LinearFacts) -> None:
    """Checks a stored code book `found` against `known`, both fp32 (16,) or (256,).

    Raises:
        RefusedError: they differ.
    """
    import torch

    if not torch.equal(found, known.to(found.device)):
        raise RefusedError(f"the code book of `{linear.name}` differs from bitsandbytes' own")


FORMAT = Format(
    name="bitsandbytes",
    summary="bitsandbytes NF4, plain or with double quantization",
    quant_method="bitsandbytes",
    encode=encode,
    decode=decode,
    layout=layout,
    config=config,
    parse=parse,
    check=check,
    matches=lambda block: block.get("quant_method") == "bitsandbytes",
)
