"""Check from the headers alone that a checkpoint contains the model that its config describes."""

from collections.abc import Mapping
from pathlib import Path

from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import InputError, QuantkitError, RefusedError
from quantkit.model.weight_map import Place

NAMED = 3
"""Names that a message lists before it counts the rest."""
Wanted = tuple[Place | None, tuple[int, ...] | None]
"""Where a tensor that a model loads is stored (None: nowhere), and its shape (None: any)."""


def check_complete(
    folder: Path, stored: Mapping[str, TensorInfo], wanted: Mapping[str, Wanted], *, plain: bool
) -> None:
    """Check that every tensor of the model is in the checkpoint, in the shape that it must have.

    `stored` are the tensors of the checkpoint in `folder`, `wanted` those of the model, by name;
    `plain`: none of them is quantized.

    Raises:
        InputError: tensors are missing or have another shape; the first ones are named.
        RefusedError: its tensors have other names, and no rule of transformers leads to the model.
    """
    missing = [name for name, (place, _) in wanted.items() if place is None]
    if missing:
        used = {source for place, _ in wanted.values() if place for source in place.names}
        raise _incomplete(folder, set(stored), missing, used, plain=plain)
    faults = []
    for name, (place, shape) in wanted.items():
        if place is None or shape is None:
            continue
        found = place.shape(stored)
        if found != shape:
            faults.append(
                f"`{name}` has shape {found} in the checkpoint, but {shape} by config.json"
            )
    if faults:
        more = f"{len(faults) - NAMED} more" if len(faults) > NAMED else ""
        raise InputError(
            f"config.json of `{folder}` does not match the weights",
            why="\n".join(filter(None, (*faults[:NAMED], more))),
            hint="use the config.json that belongs to these weights",
        )


def _incomplete(
    folder: Path, stored: set[str], missing: list[str], used: set[str], *, plain: bool
) -> QuantkitError:
    """Unused tensors beside missing ones are probably the same, with other names or splits."""
    over = sorted(n for n in stored - used if n.endswith("weight"))
    if plain and over:
        return RefusedError(
            f"`{folder}` contains {_some(over)} where the model needs {_some(missing)}",
            why="transformers' rules for this model do not lead from the first to the second",
            hint="use the checkpoint as its authors published it, with its own config.json",
        )
    return InputError(
        f"{_some(missing)} not in `{folder}`",
        why="the model in config.json needs them",
        hint="use a folder whose safetensors files contain the whole model",
    )


def _some(names: list[str]) -> str:
    named = ", ".join(f"`{name}`" for name in names[:NAMED])
    return named + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
