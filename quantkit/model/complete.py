"""Whether a checkpoint holds the model that its config describes, told from the headers alone."""

from collections.abc import Iterator

from torch import nn

from quantkit.core.errors import InputError, QuantkitError, RefusedError
from quantkit.model.opened import OpenModel
from quantkit.model.skeleton import is_linear, linear_facts, persistent_buffers

NAMED = 3
"""So many names of a kind are told, and the count of the rest."""


def check_complete(model: OpenModel) -> None:
    """Nothing, when every tensor of the model is in the checkpoint, in the shape that it must have.

    Raises:
        InputError: some are missing, or of another shape; all are counted, the first are named.
        RefusedError: the checkpoint names or cuts its tensors otherwise than the model does.
    """
    wanted = list(_wanted(model))
    stored = {name: model.source_name(name) for name, _ in wanted}
    missing = [name for name, source in stored.items() if source is None]
    if missing:
        raise _incomplete(model, missing, {source for source in stored.values() if source})
    faults = []
    for name, shape in wanted:
        found = model.checkpoint.names[stored[name] or name].shape
        if shape is not None and found != shape:
            faults.append(f"`{name}` is {found} in the checkpoint, config.json makes it {shape}")
    if faults:
        more = f"{len(faults) - NAMED} more" if len(faults) > NAMED else ""
        raise InputError(
            f"config.json of `{model.checkpoint.folder}` does not fit its weights",
            why="\n".join(filter(None, (*faults[:NAMED], more))),
            hint="the config.json that belongs to these weights",
        )


def _wanted(model: OpenModel) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """Every tensor that the model loads, and its shape; None where the format's decode knows it."""
    for path, module in model.skeleton.model.named_modules():
        for key, shape in _own(module):
            name = f"{path}.{key}" if path else key
            scheme = None
            if key == "weight" and is_linear(module):
                scheme = model.scheme(path)
            if scheme is None or model.format is None:
                yield name, shape
                continue
            facts = linear_facts(path, module)
            for suffix in model.format.layout(scheme, facts, model.dtype_name):
                yield f"{path}.{suffix}", None


def _own(module: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    for key, parameter in module.named_parameters(recurse=False):
        yield key, tuple(parameter.shape)
    for key, buffer in persistent_buffers(module):
        yield key, tuple(buffer.shape)


def _incomplete(model: OpenModel, missing: list[str], used: set[str]) -> QuantkitError:
    """Tensors that stay over where others are missing are the same ones, named or cut otherwise."""
    folder = model.checkpoint.folder
    over = sorted(n for n in model.checkpoint.names if n not in used and n.endswith("weight"))
    if model.format is None and over:
        return RefusedError(
            f"`{folder}` stores {_some(over)}, where the model has {_some(missing)}",
            why="transformers renames or merges these tensors while it loads them; "
            "quantkit reads and writes them one by one, as they are stored",
            hint="another model; such checkpoints cannot be quantized yet",
        )
    return InputError(
        f"{_some(missing)} not in `{folder}`",
        why="config.json describes a model that has them",
        hint="a folder whose safetensors files hold the whole model",
    )


def _some(names: list[str]) -> str:
    named = ", ".join(f"`{name}`" for name in names[:NAMED])
    return named + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
