"""A model as planning sees it, from a folder, a config.json, or the hub: without its weights."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from quantkit.checkpoint.filenames import CONFIG, INDEX, MODELOPT, SINGLE
from quantkit.checkpoint.files import read_json
from quantkit.checkpoint.quantization import quantization_block, with_modelopt
from quantkit.checkpoint.reader import open_checkpoint
from quantkit.checkpoint.source import hub_id, local_path
from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import InputError, RefusedError
from quantkit.planning.model.blockwise import block_fp8
from quantkit.planning.model.config import is_identifier, stated_dtype
from quantkit.planning.model.described import Described, describe
from quantkit.planning.model.headers import inventory_from_headers
from quantkit.planning.model.inventory import FLOATS, Inventory
from quantkit.planning.model.original import original_of
from quantkit.planning.model.packed import modelopt, mxfp4
from quantkit.planning.model.served import own_dtype
from quantkit.planning.model.weights import ADDS_UP, PlannedModel, planned_model
from quantkit.recipes.loader import load_family

FUSED = 3
"""Dimensions of a tensor that holds a matrix of each expert."""


def open_model(model: str) -> PlannedModel:
    """The model that `model` names: a folder, a config.json, or a hub id `org/name[@revision]`.

    Raises:
        InputError: none of these, or its config is not what it should be.
        RefusedError: a family whose memory is not known.
        HubError: gated, not found or offline.
    """
    path = local_path(model)
    with _no_collection():
        if path and path.is_dir() and ((path / SINGLE).exists() or (path / INDEX).exists()):
            opened = open_checkpoint(path)
            config = _with_beside(opened.config, path)
            return _planned(path.resolve().name, config, opened.names)
        if path:
            folder = path if path.is_dir() else path.resolve().parent
            config = _object(path / CONFIG if path.is_dir() else path)
            return _planned(folder.name, _with_beside(config, folder), {})
        repo, revision = hub_id(model)
        from quantkit.checkpoint.remote import remote_headers

        remote = remote_headers(repo, revision)
        return _planned(repo, remote.config, remote.names)


def _object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: it holds none.
    """
    found = read_json(path, infinite=True)
    if not isinstance(found, dict):
        raise InputError(f"`{path}` does not hold a JSON object", hint="a model's config.json")
    return found


def _with_beside(config: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """A config, with the block of ModelOpt's file beside it where it has none of its own."""
    beside = folder / MODELOPT
    if quantization_block(config) is not None or not beside.is_file():
        return config
    return with_modelopt(config, _object(beside))


def _planned(
    name: str, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> PlannedModel:
    quantized = _quantized(config)
    if quantized is None:
        _require_floats(name, config, tensors)
    notes = []
    if quantized and not tensors and stated_dtype(config) is None:
        config = {**config, "dtype": "bfloat16"}
        notes.append("config.json names no dtype: plan takes bfloat16 for what is not quantized")
    described = describe(config, has_files=bool(tensors))
    architecture = described.architecture
    inventory = (
        _apart(_checked(inventory_from_headers(tensors, architecture)), described, quantized)
        if tensors
        else _from_config(name, described, quantized)
    )
    notes += described.notes
    if not tensors and (extra := config.get("num_nextn_predict_layers")):
        notes.append(
            f"not counted: {extra!r:.9} extra prediction layer(s), for speculative decoding"
        )
    if stated_dtype(config) is None:
        architecture = replace(architecture, dtype=own_dtype(inventory) or architecture.dtype)
        if not tensors:
            notes.append("config.json names no dtype: plan takes float32")
    original = original_of(name, described, quantized) if quantized else None
    if quantized and original is None:
        notes.append(f"plan does not know the engines' rules for this form of {quantized}")
    if (family := load_family(architecture.model_type)) is not None:
        notes += family.notes
    model = planned_model(name, inventory, architecture, quantized)
    notes = [*model.notes, *notes]
    model = replace(model, original=original, notes=tuple(notes), unbuilt=described.unbuilt)
    described = replace(described, architecture=architecture)
    return replace(model, decoded=partial(_decoded, name, described, tensors))


def _require_floats(
    name: str, config: Mapping[str, Any], tensors: Mapping[str, TensorInfo]
) -> None:
    """Check that no code of an unknown format would be taken for a weight.

    Raises:
        RefusedError: a weight is no float, and no scale of it is known.
    """
    from quantkit.model.quantized import coded_weights

    coded = coded_weights(tensors, config, name)
    for tensor, info in tensors.items():
        if tensor.endswith(".weight") and info.dtype not in FLOATS and tensor not in coded:
            raise RefusedError(
                f"`{tensor}` of `{name}` is stored as {info.dtype}, and is a weight",
                why="the checkpoint is quantized in a way that its config.json does not say",
                hint="use the model in bf16",
            )


def _apart(stored: Inventory, described: Described, quantized: str | None) -> Inventory:
    """The tensors of files with experts that they store fused as the linears that these are.

    They are those of the config, if it gives as many numbers: `quantize` makes one linear of each.
    """
    fused = [row for row in stored.rows if row.part == "experts" and len(row.shape) == FUSED]
    known = described.inventory if fused and quantized is None else None
    if known is None:
        return stored
    own = [row for row in stored.rows if row.part == "experts"]
    apart = [
        row._replace(dtype=own[0].dtype, merged=row.linear is not None)
        for row in known.rows
        if row.part == "experts"
    ]
    if sum(prod(r.shape) for r in own) != sum(prod(r.shape) * r.alike for r in apart):
        return stored
    rest = (row for row in stored.rows if row.part != "experts")
    return Inventory((*rest, *apart), stored.origin, stored.uncounted)


def _decoded(name: str, described: Described, tensors: Mapping[str, TensorInfo]) -> PlannedModel:
    """The 16-bit model that the codes of a quantized one mean; with files, those that can be read.

    Raises:
        InputError, RefusedError: as `quantize`, or transformers cannot build the model.
    """
    from quantkit.model.quantized import quantized_form

    if tensors:
        quantized_form(tensors, described.config, name)
    inventory = described.inventory
    if inventory is None:
        raise RefusedError(f"the linears of `{name}` are not known", why=described.unbuilt)
    model = planned_model(name, inventory, described.architecture)
    return replace(model, notes=(*model.notes, ADDS_UP), unbuilt=described.unbuilt)


def _from_config(name: str, described: Described, quantized: str | None) -> Inventory:
    """The tensors that a config alone describes.

    Raises:
        InputError: it is quantized, in a form whose tensors it does not describe.
    """
    inventory = described.inventory
    assert inventory is not None
    if quantized is None:
        return inventory
    block = {**(quantization_block(described.config) or {}), "quant_method": quantized}
    text = described.config.get("text_config")
    text = text if isinstance(text, Mapping) else described.config
    if "expert_dtype" in text:
        block["expert_dtype"] = text["expert_dtype"]
    found = (
        block_fp8(block, inventory, described.architecture)
        or modelopt(block, inventory)
        or mxfp4(block, inventory)
    )
    if found is None:
        raise InputError(
            f"`{name}` is quantized as {quantized}, and its weight files are missing",
            why="only their headers give the sizes of its tensors",
            hint="the folder with its safetensors files, or its hub id; or the config without its "
            "quantization_config, to plan it in 16 bits",
        )
    return found


def _quantized(config: Mapping[str, Any]) -> str | None:
    """The format that a config's block names, None where there is no block.

    Raises:
        InputError: it names none.
    """
    block = quantization_block(config)
    if block is None:
        return None
    method = block.get("quant_method")
    if method is None and block.get("quant_algo"):
        return "modelopt"  # its older files do not name it; vLLM 0.33 reads them so
    if method is None and (block.get("load_in_8bit") or block.get("load_in_4bit")):
        return "bitsandbytes"  # files from before it had a name; transformers reads them so
    if not is_identifier(method):
        found = "missing" if method is None else f"{method!r:.60}"
        raise InputError(
            f"config.json: quant_method is {found}", hint="gptq, awq, bitsandbytes, ..."
        )
    return str(method)


def _checked(inventory: Inventory) -> Inventory:
    """The inventory, where a scale of a whole vocabulary is not split by its rows: it has none.

    Raises:
        InputError: a weight has no rows or no columns.
    """
    tensors = []
    for tensor in inventory.rows:
        weight = tensor.linear is not None or tensor.part == "embedding"
        if 0 in tensor.shape and (weight or tensor.split == "vocabulary"):
            raise InputError(f"`{tensor.name[:200]}` is empty", why=f"its shape is {tensor.shape}")
        alone = tensor.split == "vocabulary" and not tensor.shape
        tensors.append(tensor._replace(split="replicated") if alone else tensor)
    return Inventory(tuple(tensors), inventory.origin, inventory.uncounted)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without garbage collection: it would look through 100,000 tensors again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
