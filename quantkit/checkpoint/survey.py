"""A model folder as it lies there: index, headers and config, each with what is wrong with it.

`open_checkpoint` refuses a folder at its first fault; `verify` names every one of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quantkit.checkpoint.filenames import CONFIG, INDEX, MAX_INDEX, SINGLE
from quantkit.checkpoint.files import inside, opened, read_json
from quantkit.checkpoint.header import read_header
from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import IntegrityError, QuantkitError


@dataclass(frozen=True)
class Survey:
    """What was found in a folder.

    `index`: tensor -> shard as the index states it, empty without one. `shards`: each shard that
    is there -> its tensors. `broken`: each shard whose header cannot be read, and why. `missing`:
    the shards that the index names and that are not there. `faults`: of config.json and the index
    themselves, by file name.
    """

    folder: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    index: Mapping[str, str] = field(default_factory=dict)
    shards: Mapping[str, Mapping[str, TensorInfo]] = field(default_factory=dict)
    broken: Mapping[str, QuantkitError] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    faults: Mapping[str, QuantkitError] = field(default_factory=dict)

    def home(self, name: str) -> str | None:
        """The shard that holds a tensor; None where none does."""
        return next((shard for shard, tensors in self.shards.items() if name in tensors), None)


def survey(folder: Path) -> Survey:
    """The folder's index, headers and config; what is wrong with them is told, not raised."""
    faults: dict[str, QuantkitError] = {}
    config = _object(folder / CONFIG, faults, infinite=True)
    index: dict[str, str] = {}
    if (folder / INDEX).exists():
        stated = _object(folder / INDEX, faults, limit=MAX_INDEX).get("weight_map")
        if isinstance(stated, dict):
            index = {str(name): str(shard) for name, shard in stated.items()}
        elif INDEX not in faults:
            faults[INDEX] = IntegrityError("it contains no `weight_map`")
    stated_shards = set(index.values()) or {SINGLE}
    lying = {path.name for path in folder.glob("*.safetensors")}
    shards: dict[str, Mapping[str, TensorInfo]] = {}
    broken: dict[str, QuantkitError] = {}
    for name in sorted(lying):
        try:
            with opened(inside(folder, name)) as (fd, fingerprint):
                shards[name] = read_header(folder / name, fd, fingerprint)
        except QuantkitError as error:
            broken[name] = error
    missing = tuple(sorted(stated_shards - lying))
    return Survey(folder, config, index, shards, broken, missing, faults)


def _object(
    path: Path, faults: dict[str, QuantkitError], *, limit: int = 10 * 2**20, infinite: bool = False
) -> dict[str, Any]:
    try:
        found = read_json(inside(path.parent, path.name), max_bytes=limit, infinite=infinite)
    except QuantkitError as error:
        faults[path.name] = error
        return {}
    if not isinstance(found, dict):
        faults[path.name] = IntegrityError("it is not a JSON object")
        return {}
    return found
