"""The tensors of checkpoints in NVFP4, per-tensor fp8 and MXFP4, from their config alone.

ModelOpt (its config block, or hf_quant_config.json): codes with an fp8 scale for 16 inputs, a scale
of the whole, and one of the inputs; in fp8 with the last two. MXFP4 (OCP): codes with an 8-bit
exponent for 32 inputs. Sources: modelopt 0.33, vLLM 0.33, transformers 5.23.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from typing import Any

from quantkit.planning.model.inventory import Inventory, PlannedTensor

LINEAR_PARTS = ("attention", "mlp", "experts")
MXFP4_GROUP, NVFP4_GROUP = 32, 16
NO_LINEARS = (".gate", "_gate", ".router", ".conv1d")
"""How the names of modules end that stay anyway; what is before differs from file to class."""
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)(?=\.|$)")
_BLOCKS = re.compile(r"^.*?(?=\blayers\.\d)")
Stored = tuple[PlannedTensor, ...]


def modelopt(block: Mapping[str, Any], inventory: Inventory) -> Inventory | None:
    """The inventory of a 16-bit model with the linears of its blocks as ModelOpt stores them.

    None where the block names another or several formats, or does not say, by names that are known
    here, which linears stay.
    """
    forms: Mapping[object, Callable[[PlannedTensor], Stored]] = {"NVFP4": nvfp4, "FP8": tensor_fp8}
    store = forms.get(block.get("quant_algo"))
    excluded = block.get("exclude_modules", block.get("ignore"))
    if block.get("quant_method") != "modelopt" or store is None or not isinstance(excluded, list):
        return None
    if block.get("quantized_layers") or any(not isinstance(name, str) for name in excluded):
        return None
    inventory = inventory.told_apart(excluded)
    stays = _excluding(excluded, inventory)
    return None if stays is None else _with(inventory, LINEAR_PARTS, store, stays)


def mxfp4(block: Mapping[str, Any], inventory: Inventory) -> Inventory | None:
    """The inventory of a 16-bit model with its experts in MXFP4, as gpt-oss has them."""
    if block.get("quant_method") != "mxfp4":
        return None
    return _with(inventory, ("experts",), micro, lambda _: False)


def micro(weight: PlannedTensor) -> Stored:
    """A weight in MXFP4."""
    return _codes(weight, "_scales", "F8_E8M0", MXFP4_GROUP)


def nvfp4(weight: PlannedTensor) -> Stored:
    """A weight in ModelOpt's NVFP4."""
    scales = _scalars(weight, "_scale_2")
    return (*_codes(weight, "_scale", "F8_E4M3", NVFP4_GROUP), *scales)


def tensor_fp8(weight: PlannedTensor) -> Stored:
    """A weight in ModelOpt's fp8."""
    return (weight._replace(dtype="F8_E4M3", linear=None, fused=()), *_scalars(weight, "_scale"))


def _codes(weight: PlannedTensor, suffix: str, dtype: str, group: int) -> Stored:
    rows, columns = weight.shape
    codes = weight._replace(dtype="U8", shape=(rows, -(-columns // 2)), linear=None, fused=())
    scales = codes._replace(
        name=weight.name + suffix, dtype=dtype, shape=(rows, -(-columns // group))
    )
    return codes, scales


def _scalars(weight: PlannedTensor, suffix: str) -> Stored:
    """The scale of a whole weight and that of its inputs, in fp32."""
    one = weight._replace(dtype="F32", shape=(), split="replicated", linear=None, fused=())
    inputs = f"{weight.name.removesuffix('weight')}input_scale"
    return one._replace(name=weight.name + suffix), one._replace(name=inputs)


def _with(
    inventory: Inventory,
    parts: Sequence[str],
    store: Callable[[PlannedTensor], Stored],
    stays: Callable[[str], bool],
) -> Inventory:
    tensors: list[PlannedTensor] = []
    for tensor in inventory.rows:
        linear = tensor.linear if tensor.layer is not None and tensor.part in parts else None
        tensors += [tensor] if linear is None or stays(linear) else store(tensor)
    left = {tensor.linear for tensor in tensors}
    tensors = [t._replace(fused=_left(t.fused, left)) if t.fused else t for t in tensors]
    return Inventory(tuple(tensors), inventory.origin, inventory.uncounted)


def _left(fused: tuple[str, ...], left: set[str | None]) -> tuple[str, ...]:
    """Those that stayed in 16 bits, as headers show it."""
    found = tuple(name for name in fused if name in left)
    return found if len(found) > 1 else ()


def _excluding(patterns: Sequence[str], inventory: Inventory) -> Callable[[str], bool] | None:
    """Whether a module is left out, by globs; None where one of a block's matches no module of it.

    Names are compared from `layers` on, since files and classes differ in what is before.
    """
    depth = max((t.layer for t in inventory.rows if t.layer is not None), default=-1) + 1
    by_layer: dict[str, list[re.Pattern[str]]] = {}
    everywhere = []
    for pattern in patterns:
        found = _LAYER.search(pattern)
        rule = re.compile(translate(_named(pattern)))
        if found is None:
            everywhere.append(rule)
        elif int(found[1]) < depth and not pattern.endswith(NO_LINEARS):
            by_layer.setdefault(found[1], []).append(rule)
    modules: dict[str, set[str]] = {}
    for tensor in inventory.rows:
        name = _named(tensor.name)
        if (found := _LAYER.search(name)) and found[1] in by_layer:
            modules.setdefault(found[1], set()).update((name, name.rpartition(".")[0]))
    for layer, rules in by_layer.items():
        names = modules.get(layer, set())
        if not all(any(rule.match(name) for name in names) for rule in rules):
            return None

    def stays(linear: str) -> bool:
        name = _named(linear)
        layer = _LAYER.search(name)
        rules = by_layer.get(layer[1], []) if layer else []
        return any(rule.match(name) for rule in (*rules, *everywhere))

    return stays


def _named(name: str) -> str:
    """A name without what comes before its block, and with shared experts in the singular."""
    return _BLOCKS.sub("", name).replace("shared_experts", "shared_expert")
