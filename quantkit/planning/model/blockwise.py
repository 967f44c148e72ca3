"""The tensors of a checkpoint in block-wise fp8, from its config alone.

DeepSeek-V3's form (arXiv 2412.19437, 3.3.2; transformers 5.23 source): a linear of the blocks is
F8_E4M3, and has an fp32 scale for each block of its weight, `weight_scale_inv`.
"""

import re
from collections.abc import Mapping
from typing import Any

from quantkit.planning.model.architecture import Architecture, Recurrent
from quantkit.planning.model.inventory import Inventory, PlannedTensor
from quantkit.planning.model.packed import micro

LINEAR_PARTS = ("attention", "mlp", "experts")
NAME = re.compile(r"[A-Za-z0-9_.\-]{1,500}")


def block_fp8(
    block: Mapping[str, Any], inventory: Inventory, architecture: Architecture
) -> Inventory | None:
    """The inventory of a 16-bit model with its linears as the config's `block` stores them.

    Where its `expert_dtype` is "fp4" (DeepSeek-V4), experts are in MXFP4 and scales 8-bit
    exponents. None where that is not plain block-wise fp8: other methods, static scales, patterns
    for names, or mixers whose linears are not listed by the names of the files.
    """
    sizes, skipped = _block_of(block), _skipped(block)
    four = block.get("expert_dtype") == "fp4"
    scale = "F8_E8M0" if four else "F32"
    plain = (
        block.get("quant_method") == "fp8"
        and block.get("fmt") in (None, "e4m3", "float8_e4m3fn")
        and block.get("activation_scheme") in (None, "dynamic")
        and block.get("expert_dtype") in (None, "fp8", "fp4")
        and "quantized_layers" not in block
        and not any(isinstance(layer.mixer, Recurrent) for layer in architecture.layers)
    )
    if not plain or skipped is None or sizes is None:
        return None
    tensors: list[PlannedTensor] = []
    for tensor in inventory.told_apart(skipped).rows:
        in_block = tensor.layer is not None and tensor.part in LINEAR_PARTS
        if in_block and tensor.linear and not (skipped and _is_skipped(tensor.linear, skipped)):
            small = four and tensor.part == "experts"
            tensors += micro(tensor) if small else _stored(tensor, sizes, scale)
        else:
            tensors.append(tensor)
    if skipped:
        left = {tensor.linear for tensor in tensors}
        tensors = [_fused_with(t, left) if t.fused else t for t in tensors]
    return Inventory(tuple(tensors), inventory.origin, inventory.uncounted)


def _stored(
    tensor: PlannedTensor, block: list[int], scale: str
) -> tuple[PlannedTensor, PlannedTensor]:
    rows, columns = tensor.shape
    blocks = (-(-rows // block[0]), -(-columns // block[1]))
    weight = tensor._replace(dtype="F8_E4M3", linear=None, fused=())
    return weight, weight._replace(name=f"{tensor.name}_scale_inv", dtype=scale, shape=blocks)


def _fused_with(tensor: PlannedTensor, left: set[str | None]) -> PlannedTensor:
    """Fused with those alone that stayed in 16 bits, as headers show it."""
    fused = tuple(name for name in tensor.fused if name in left)
    return tensor._replace(fused=fused if len(fused) > 1 else ())


def _block_of(block: Mapping[str, Any]) -> list[int] | None:
    sizes = block.get("weight_block_size")
    if not isinstance(sizes, list) or len(sizes) != 2:
        return None
    return sizes if all(type(size) is int and 0 < size < 1 << 20 for size in sizes) else None


def _skipped(block: Mapping[str, Any]) -> frozenset[str] | None:
    """Names of modules that stay in 16 bits; None where they are patterns."""
    names: list[Any] = []
    for key in ("modules_to_not_convert", "ignored_layers"):
        listed = block.get(key) or []
        if not isinstance(listed, list):
            return None
        names += listed
    if any(not isinstance(name, str) or not NAME.fullmatch(name) for name in names):
        return None
    return frozenset(names)


def _is_skipped(linear: str, skipped: frozenset[str]) -> bool:
    """Whether a name is that of a linear, of what it lies in, or the end of its own."""
    words = linear.split(".")
    cuts = range(len(words))
    return any(".".join(words[i:]) in skipped for i in cuts) or any(
        ".".join(words[:i]) in skipped for i in cuts
    )
