"""bitsandbytes' 4-bit checkpoint layout, NF4 (QLoRA, arXiv 2305.14314)."""

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
LONGEST_STATE = 4096
LONGEST_FLOAT = 24


def encode(qtensor: QTensor, dtype: str = "float32") -> dict[str, torch.Tensor]:
    """Two codes a byte, the first in the high nibble, and bitsandbytes' quant state."""
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
    """The QTensor of `linear`; its block size stands with the tensor, not in the config."""
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
    """Tensors of each linear: the packed codes stand under the weight's own name."""
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

    The type is named because fp4 is the default; a stated skip list replaces the default one, so
    the head stands in it.
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


@parser
def parse(config: Mapping[str, Any], name: str) -> Scheme | None:
    """The scheme of linear `name`, None if it is dense; 64 is bitsandbytes' default block size."""
    kind = config.get("bnb_4bit_quant_type", "fp4")
    storage = config.get("bnb_4bit_quant_storage", "uint8")
    if not (config.get("load_in_4bit") or config.get("_load_in_4bit")) or kind != "nf4":
        raise RefusedError("of bitsandbytes' types only nf4 is read", why="not int8, not fp4")
    if storage != "uint8":
        raise RefusedError(f"bitsandbytes' storage type `{storage}` is not read, only uint8")
    in_block = any(part.isdigit() for part in name.split("."))
    skipped = config.get("llm_int8_skip_modules") or ()
    if not in_block or any(f".{part}." in f".{name}." for part in skipped):
        return None
    double = bool(config.get("bnb_4bit_use_double_quant"))
    return Scheme("nf4", 4, 64, symmetric=True, double_quant=double)


def check(scheme: Scheme, linear: LinearFacts) -> str | None:
    """What the layout cannot hold."""
    if scheme.grid != "nf4":
        return f"format bitsandbytes holds NF4, not {scheme.label()}; try: --method nf4"
    size = scheme.group_size or 0
    if size & (size - 1) or not 32 <= size <= 4096:
        given = scheme.group_size or "channel"
        return f"bitsandbytes' blocks are powers of two from 32 to 4096, not {given}"
    if linear.in_features % size:
        return (
            f"bitsandbytes on a CPU misreads blocks of {size} that cross rows of "
            f"{linear.in_features} inputs, without an error; try: --group-size 32"
        )
    return None


def _state(scheme: Scheme, shape: tuple[int, ...], dtype: str, offset: float) -> bytes:
    """JSON as bitsandbytes reads it.

    Trailing blanks give every linear's the same length, so that a file can be laid out before
    the offsets are known.
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
    # A flat dict of strings, numbers and a list is JSON but for the quotes.
    return (str(state).replace("'", '"') + " " * blanks).encode()


def _read_state(
    tensors: Mapping[str, torch.Tensor], linear: LinearFacts, shape: tuple[int, int]
) -> dict[str, Any]:
    raw = tensors.get(STATE)
    length = 0 if raw is None else min(raw.numel(), LONGEST_STATE)
    raw = stored_tensor(tensors, linear, STATE, "uint8", (length,))
    try:
        state = ast.literal_eval(bytes(raw.tolist()).decode().strip())
        size, offset = state["blocksize"], state.get("nested_offset", 0.0)
        known = state["quant_type"] == "nf4" and isinstance(offset, float)
        known &= isinstance(size, int) and 32 <= size <= 4096
        stated = tuple(state.get("shape", ()))
        known &= state.get("nested_blocksize", NESTED_SIZE) == NESTED_SIZE
    except (ValueError, SyntaxError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"`{linear.name}.{STATE}` cannot be read", why=str(error)) from error
    if not known:
        raise RefusedError(f"`{linear.name}` has a quant state that is not read", why=str(state))
    if stated != shape:
        raise InputError(f"`{linear.name}` has shape {state.get('shape')}, not {list(shape)}")
    return dict(state)


def _same_book(found: torch.Tensor, known: torch.Tensor, linear: LinearFacts) -> None:
    import torch

    if not torch.equal(found, known.to(found.device)):
        raise RefusedError(f"`{linear.name}` has a code book that is not bitsandbytes'")


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
