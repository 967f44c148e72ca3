"""Whether a checkpoint holds the model that its config describes, told from the headers alone."""

from collections.abc import Mapping
from pathlib import Path

from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import InputError, QuantkitError, RefusedError

NAMED = 3
"""So many names of a kind are told, and the count of the rest."""
Wanted = tuple[str | None, tuple[int, ...] | None]
"""The tensor of a checkpoint that a model loads, if it is there, and its shape, if it is known."""


def check_complete(
    folder: Path, stored: Mapping[str, TensorInfo], wanted: Mapping[str, Wanted], *, plain: bool
) -> None:
    """Nothing, when every tensor of the model is in the checkpoint, in the shape that it must have.

    `stored` are the tensors of the checkpoint in `folder`, `wanted` those of the model, by name;
    `plain`: none of them is quantized.

    Raises:
        InputError: some are missing, or of another shape; all are counted, the first are named.
        RefusedError: the checkpoint names or cuts its tensors otherwise than the model does.
    """
    missing = [name for name, (source, _) in wanted.items() if source is None]
    if missing:
        used = {source for source, _ in wanted.values() if source}
        raise _incomplete(folder, set(stored), missing, used, plain=plain)
    faults = []
    for name, (source, shape) in wanted.items():
        found = stored[source or name].shape
        if shape is not None and found != shape:
            faults.append(f"`{name}` is {found} in the checkpoint, config.json makes it {shape}")
    if faults:
        more = f"{len(faults) - NAMED} more" if len(faults) > NAMED else ""
        raise InputError(
            f"config.json of `{folder}` does not fit its weights",
            why="\n".join(filter(None, (*faults[:NAMED], more))),
            hint="the config.json that belongs to these weights",
        )


def _incomplete(
    folder: Path, stored: set[str], missing: list[str], used: set[str], *, plain: bool
) -> QuantkitError:
    """Tensors that stay over where others are missing are the same ones, named or cut otherwise."""
    over = sorted(n for n in stored - used if n.endswith("weight"))
    if plain and over:
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
