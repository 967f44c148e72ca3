"""Open a model folder, plain or quantized: files, skeleton, dtype and format."""

from dataclasses import replace
from pathlib import Path

import torch

from quantkit.checkpoint.checkpoint import Checkpoint
from quantkit.checkpoint.coded import Coding
from quantkit.checkpoint.dtypes import TORCH_DTYPES
from quantkit.checkpoint.quantization import quantization_block
from quantkit.checkpoint.reader import open_checkpoint
from quantkit.core.errors import InputError, RefusedError
from quantkit.core.format import Format
from quantkit.core.session import Session
from quantkit.model.cache_scales import read_scales
from quantkit.model.complete import check_complete
from quantkit.model.opened import OpenModel, computed_in
from quantkit.model.quantized import quantized_form
from quantkit.model.skeleton import Skeleton, build_skeleton, read_config, tied_to
from quantkit.model.unclaimed import unclaimed
from quantkit.model.weight_map import WeightMap, map_weights


def open_model(
    folder: Path, session: Session = Session(), *, skeleton: Skeleton | None = None
) -> OpenModel:
    """Open a plain model, or an artifact in a supported format, to run it block by block.

    Weights in 8- and 4-bit floats are read as the dense ones that they stand for.

    A `skeleton` that is given is used; otherwise one is built.

    Raises:
        InputError: not a model folder, or tensors are missing or have another shape.
        RefusedError: its architecture, format or tensor layout is not supported, or it has tensors
            that the model of its config has no place for.
    """
    checkpoint = open_checkpoint(folder)
    form = quantized_form(checkpoint.names, checkpoint.config, folder)
    checkpoint = checkpoint.decoded(form) if isinstance(form, Coding) else checkpoint
    if skeleton is None:
        skeleton = build_skeleton(read_config(folder, session), session)
    weights = map_weights(skeleton.rules, checkpoint.names)
    source = _dtype(skeleton, checkpoint, weights)
    device = torch.device(session.device)
    checkpoint = replace(checkpoint, pinned=device.type == "cuda")
    dtype = computed_in(source, device)
    output = form if isinstance(form, Format) else None
    model = OpenModel(skeleton, checkpoint, weights, output, source, dtype, device)
    wanted = {name: (model.place(name), shape) for name, shape in model.tensors()}
    check_complete(folder, checkpoint.names, wanted, plain=output is None)
    if output is None:
        _require_floats(model)
    places = (place for place, _ in wanted.values())
    aside = unclaimed(skeleton, checkpoint, weights, places, plain=output is None)
    model = replace(model, aside=aside)
    if output is None:
        return model
    if output.kv_cache_of(quantization_block(checkpoint.config) or {}) is None:
        return model
    return replace(model, cache=read_scales(checkpoint, weights.holders))


def _require_floats(model: OpenModel) -> None:
    """Check that no code of an unknown format would be read as a weight.

    Raises:
        RefusedError: a tensor is stored in another kind of number than the model has.
    """
    for name, tensor in model.skeleton.model.state_dict(keep_vars=True).items():
        place = model.place(name)
        stored = model.checkpoint.names[place.names[0]].dtype if place else "F32"
        if tensor.is_floating_point() and stored not in ("F32", "F16", "BF16", "F64"):
            raise RefusedError(
                f"`{name}` is stored as {stored}, and is a float in the model",
                why="the checkpoint is quantized in a way that its config.json does not say",
                hint="use the model in bf16",
            )


def _dtype(skeleton: Skeleton, checkpoint: Checkpoint, weights: WeightMap) -> torch.dtype:
    """The dtype of the input embedding, which no format quantizes.

    Raises:
        InputError: the embedding is missing.
        RefusedError: it has another name, or a dtype that is not supported.
    """
    embedding = skeleton.model.get_input_embeddings()
    name = next(n for n, m in skeleton.model.named_modules() if m is embedding)
    weight = f"{name}.weight"
    place = weights.places.get(weight) or weights.places.get(tied_to(skeleton.model, weight) or "")
    if place is None:
        raise InputError(
            f"`{weight}` is not in `{checkpoint.folder}`",
            hint="use a folder whose safetensors files contain the whole model",
        )
    source = place.names[0]
    dtype = TORCH_DTYPES[checkpoint.names[source].dtype]
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise RefusedError(
            f"`{source}` has dtype {checkpoint.names[source].dtype}, which is not supported",
            why="quantkit reads models in fp32, fp16 and bf16",
            hint="use the model in bf16",
        )
    return dtype
