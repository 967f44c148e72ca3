"""Headers of a hub model without its weights: config, index, first bytes of each shard."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.checkpoint.filenames import CONFIG, INDEX, MODELOPT, SINGLE
from quantkit.checkpoint.files import read_json
from quantkit.checkpoint.header import MAX_HEADER, parse_header
from quantkit.checkpoint.quantization import quantization_block, with_modelopt
from quantkit.checkpoint.reader import check_disjoint, check_index, read_weight_map, shard_names
from quantkit.checkpoint.source import hub_errors
from quantkit.checkpoint.stored import TensorInfo
from quantkit.core.errors import HubError, InputError, IntegrityError

FIRST = 100_000
"""Bytes of a shard in the first request: the whole header of most files."""
CONNECTIONS = 8
CODES = ("F8_E4M3", "F8_E5M2", "U8")
"""Dtypes of tensors that no plain model has."""


@dataclass(frozen=True)
class RemoteHeaders:
    """config.json and each tensor's location; `names` is empty without safetensors files.

    Where config.json does not say how the tensors are quantized, and ModelOpt's own file does, the
    config has that file's block.
    """

    config: dict[str, Any]
    names: Mapping[str, TensorInfo]


def remote_headers(repo: str, revision: str | None = None) -> RemoteHeaders:
    """Read the headers of a hub model; no tensor is fetched, and no file that is in the cache.

    Raises:
        InputError: its config or index is not valid.
        IntegrityError: a header is not valid, or the shards contradict the index.
        HubError: gated, not found or offline.
    """
    import huggingface_hub
    from huggingface_hub.errors import RemoteEntryNotFoundError

    def fetched(name: str, revision: str | None) -> Path | None:
        with hub_errors(repo, revision):
            try:
                return Path(huggingface_hub.hf_hub_download(repo, name, revision=revision))
            except RemoteEntryNotFoundError:
                return None

    path = fetched(CONFIG, revision)
    if path is None:
        raise HubError(f"`{repo}` contains no `{CONFIG}`", hint="use a model for transformers")
    config = _object(path, repo)
    commit = path.parent.name  # pin the snapshot: a push during the run has no effect
    index = None if _cached(repo, commit, SINGLE) else fetched(INDEX, commit)
    weight_map = read_weight_map(index.parent) if index else {}
    shards = shard_names(weight_map)
    names: dict[str, TensorInfo] = {}
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        headers = pool.map(lambda shard: _header(repo, commit, shard), shards)
        for shard, header in zip(shards, headers, strict=True):
            if header is None and index:
                raise IntegrityError(
                    f"`{repo}` is incomplete",
                    why=f"its index names `{shard}`, which does not exist",
                    hint="use another revision",
                )
            check_disjoint(names, header or {}, shard)
            names |= header or {}
    check_index(weight_map, names)
    if quantization_block(config) is None and any(t.dtype in CODES for t in names.values()):
        beside = fetched(MODELOPT, commit)
        config = with_modelopt(config, _object(beside, repo)) if beside else config
    return RemoteHeaders(config, names)


def _object(path: Path, repo: str) -> dict[str, Any]:
    """The object in a JSON file of the cache.

    Raises:
        InputError: it holds none.
    """
    found = read_json(path.resolve(), infinite=True)
    if not isinstance(found, dict):
        raise InputError(f"`{path.name}` of `{repo}` is not a JSON object")
    return found


def _header(repo: str, commit: str, shard: str) -> dict[str, TensorInfo] | None:
    """Every tensor of one shard; None where the repository has no such file."""
    read = _stored if _cached(repo, commit, shard) else _ranged
    found = read(repo, commit, shard, FIRST)
    if found is None:
        return None
    raw, size = found
    length = int.from_bytes(raw[:8], "little")
    if size < 8 or length > MAX_HEADER or length > size - 8:
        raise IntegrityError(f"`{shard}` is not a valid safetensors file")
    if length > len(raw) - 8:
        raw, again = read(repo, commit, shard, length + 8) or (b"", 0)
        if again != size:
            raise IntegrityError(f"`{shard}` changed while it was being read", hint="run again")
    return parse_header(raw[8 : 8 + length], shard, size)


def _cached(repo: str, commit: str, name: str) -> Path | None:
    """The path of a file in the hub's cache; None where the cache does not contain it."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, name, revision=commit)
    return Path(found) if isinstance(found, str) else None


def _stored(repo: str, commit: str, shard: str, count: int) -> tuple[bytes, int] | None:
    """As `_ranged`, for a file in the cache."""
    path = _cached(repo, commit, shard)
    if path is None:
        return None
    with path.open("rb") as file:
        return file.read(count), path.stat().st_size


def _ranged(repo: str, commit: str, shard: str, count: int) -> tuple[bytes, int] | None:
    """The first `count` bytes of a file, or all, and its size; None where it does not exist.

    Raises:
        IntegrityError: fewer bytes arrived, or the size is not stated.
    """
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.errors import RemoteEntryNotFoundError
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status

    url = hf_hub_url(repo, shard, revision=commit)
    headers = {**build_hf_headers(), "Range": f"bytes=0-{count - 1}"}
    raw = bytearray()
    with (
        hub_errors(repo, commit),
        get_session().stream("GET", url, headers=headers, follow_redirects=True) as response,
    ):
        try:
            hf_raise_for_status(response)
        except RemoteEntryNotFoundError:
            return None
        stated = response.headers.get("Content-Range", "").rpartition("/")[2]
        stated = stated or response.headers.get("Content-Length", "")
        for piece in response.iter_bytes():  # a server that ignores ranges sends all of it
            raw += piece
            if len(raw) >= count:
                break
    if not (stated.isascii() and stated.isdecimal() and len(stated) < 20):
        raise IntegrityError(f"the hub does not state the size of `{shard}`", why=f"{stated!r:.40}")
    if len(raw) < min(int(stated), count):
        raise IntegrityError(
            f"`{shard}` is truncated",
            why=f"{len(raw):,} of {min(int(stated), count):,} bytes arrived",
            hint="run again",
        )
    return bytes(raw[:count]), int(stated)
