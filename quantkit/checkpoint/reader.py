"""A folder opened as a checkpoint: every header checked, one tensor in memory at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantkit.checkpoint.checkpoint import Checkpoint
from quantkit.checkpoint.filenames import (
    ADAPTER,
    CONFIG,
    INDEX,
    MAX_INDEX,
    PICKLES,
    SINGLE,
    TEMPLATES,
)
from quantkit.checkpoint.files import Fingerprint, inside, opened, read_json
from quantkit.checkpoint.header import read_header
from quantkit.checkpoint.sane_config import require_sane
from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import InputError, IntegrityError, RefusedError


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open a folder as a checkpoint; its config, index and safetensors headers are validated.

    Raises:
        InputError: not a model folder, or its config or index is not valid.
        RefusedError: its weights are pickles, or have a dtype that is not supported.
        IntegrityError: a shard is missing, truncated or corrupt, or contradicts the index.
    """
    fingerprints: dict[str, Fingerprint] = {}
    config = _read_config(folder, fingerprints)
    weight_map = read_weight_map(folder)
    names: dict[str, TensorInfo] = {}
    _check_present(folder, shard_names(weight_map))
    for shard in shard_names(weight_map):
        path = inside(folder, shard)
        with opened(path) as (fd, fingerprint):
            fingerprints[shard] = fingerprint
            # messages need the shard's name: the real file of a hub snapshot is named by its hash
            tensors = read_header(folder / shard, fd, fingerprint)
        check_disjoint(names, tensors, shard)
        names.update(tensors)
    check_index(weight_map, names)
    _check_listed(weight_map, names)
    require_sane(config, names)
    weights = {*shard_names(weight_map), INDEX, CONFIG}
    return Checkpoint(folder, config, names, _other_files(folder, weights), fingerprints)


def read_weight_map(folder: Path) -> dict[str, str]:
    """The index: tensor name -> shard; empty where the weights are one `model.safetensors`.

    Raises:
        InputError: no weights, two sets of them, or an index that is not valid.
        RefusedError: the weights are pickles.
    """
    single, index = (folder / SINGLE).is_file(), (folder / INDEX).exists()
    if not index and not single:
        raise _no_weights(folder)
    if not index:
        return {}
    content = read_json(inside(folder, INDEX), max_bytes=MAX_INDEX)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(
            f"`{folder / INDEX}` contains no `weight_map`", hint="fetch the file again"
        )
    for shard in sorted(set(map(str, weight_map.values()))):  # str() of a non-string fails
        if not _is_shard_name(shard):
            raise InputError(
                f"`{folder / INDEX}` names {shard[:80]!r}, which is not a valid shard",
                why="a shard must be a `*.safetensors` file in the same folder",
            )
    if single and SINGLE not in weight_map.values():
        raise InputError(
            f"`{folder}` contains two sets of weights: `{SINGLE}` and `{INDEX}`",
            hint=f"remove one of the two from `{folder}`",
        )
    return weight_map


def shard_names(weight_map: dict[str, str]) -> list[str]:
    """The files that hold the weights, sorted."""
    return sorted(set(weight_map.values())) or [SINGLE]


def _read_config(folder: Path, fingerprints: dict[str, Fingerprint]) -> dict[str, Any]:
    if not folder.is_dir():
        kind = "is a file" if folder.exists() else "does not exist"
        raise InputError(
            f"`{folder}` is not a model folder", why=f"it {kind}", hint="pass a folder"
        )
    if not (folder / CONFIG).exists():
        raise InputError(
            f"`{folder}` is not a model folder",
            why=f"it contains no `{CONFIG}`",
            hint="pass the folder that contains config.json and *.safetensors",
        )
    path = inside(folder, CONFIG)
    with opened(path) as (_, fingerprint):
        fingerprints[CONFIG] = fingerprint
    config = read_json(path, infinite=True)
    if not isinstance(config, dict):
        raise InputError(f"`{folder / CONFIG}` is not a JSON object")
    if (folder / ADAPTER).exists():
        raise RefusedError(
            f"`{folder}` contains an adapter, `{ADAPTER}`",
            why="transformers adds it to the weights; quantkit reads the weights alone",
            hint="merge the adapter into the model, or remove it",
        )
    return config


def _no_weights(folder: Path) -> RefusedError | InputError:
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLES)
    if pickles:
        return RefusedError(
            f"`{folder}` contains no safetensors weights, only `{pickles[0]}`",
            why="such files are pickles, which can run code when opened; quantkit never loads them",
            hint="use a revision with `*.safetensors`, or convert the weights if you trust them",
        )
    return InputError(
        f"`{folder}` contains no weights",
        why=f"neither `{SINGLE}` nor `{INDEX}` exists",
        hint="pass the folder that contains config.json and *.safetensors",
    )


def _is_shard_name(shard: str) -> bool:
    plain = shard.endswith(".safetensors") and not shard.startswith(".")
    return plain and shard.isprintable() and not set(shard) & set('/\\:*?"<>|')


def _check_present(folder: Path, shards: list[str]) -> None:
    there = {path.name for path in folder.iterdir()}
    gone = [shard for shard in shards if shard not in there]
    if gone:
        raise IntegrityError(
            f"`{folder}` is incomplete",
            why=f"{len(gone)} of {len(shards)} shards are missing, first `{gone[0]}`",
            hint="fetch the model again",
        )


def check_disjoint(
    names: dict[str, TensorInfo], tensors: dict[str, TensorInfo], shard: str
) -> None:
    """Check that no tensor of `shard` is in another shard: engines differ in which copy they load.

    Raises:
        IntegrityError: a tensor is in two shards.
    """
    for name in sorted(names.keys() & tensors.keys()):
        raise IntegrityError(
            f"`{name}` is both in `{names[name].shard}` and in `{shard}`",
            hint="fetch the model again; its shards do not match",
        )


def check_index(weight_map: dict[str, str], names: dict[str, TensorInfo]) -> None:
    """Check that every tensor is in the shard that the index states.

    Raises:
        IntegrityError: a tensor is in another shard, or in none.
    """
    for name, shard in weight_map.items():
        if name not in names or names[name].shard != shard:
            where = f"it is in `{names[name].shard}`" if name in names else "no shard contains it"
            raise IntegrityError(
                f"`{INDEX}` states that {name[:200]!r} is in `{shard}`",
                why=where,
                hint="fetch the model again; its shards do not match",
            )


def _check_listed(weight_map: dict[str, str], names: dict[str, TensorInfo]) -> None:
    """Refuse a tensor that an index leaves out: an engine that goes by the index has none."""
    over = sorted(names.keys() - weight_map.keys()) if weight_map else []
    if over:
        raise IntegrityError(
            f"`{over[0]}` is in `{names[over[0]].shard}`, and not in `{INDEX}`",
            why=f"the index leaves out {len(over)} tensors",
            hint="fetch the model again; its shards do not match",
        )


def _other_files(folder: Path, weights: set[str]) -> tuple[str, ...]:
    names = []
    for entry in folder.iterdir():
        if entry.name == TEMPLATES and entry.is_dir():
            names += [f"{TEMPLATES}/{template.name}" for template in entry.iterdir()]
        elif entry.name not in weights:
            names.append(entry.name + "/" * (entry.is_dir() and not entry.is_symlink()))
    return tuple(sorted(names))
