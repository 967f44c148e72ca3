"""A hub model's headers without its weights: config, index, and the first bytes of each shard."""

import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantkit.checkpoint.files import read_json
from quantkit.checkpoint.header import MAX_HEADER, TensorInfo, parse_header
from quantkit.checkpoint.reader import CONFIG, INDEX, SINGLE, read_weight_map, shard_names
from quantkit.checkpoint.source import hub_errors
from quantkit.core.errors import HubError, InputError, IntegrityError

FIRST = 100_000
"""Bytes of a shard that are asked for at once: the whole header of most files."""
CONNECTIONS = 8


@dataclass(frozen=True)
class RemoteHeaders:
    """config.json and every tensor's place; `names` is empty where there is no safetensors file."""

    config: dict[str, Any]
    names: Mapping[str, TensorInfo]


def remote_headers(repo: str, revision: str | None = None) -> RemoteHeaders:
    """What the headers of a hub model say; no tensor is fetched.

    Raises:
        InputError: its config or index is not what it should be.
        IntegrityError: a header is not sound.
        HubError: gated, not found or offline.
    """
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    def fetched(name: str) -> Path | None:
        with hub_errors(repo, revision):
            try:
                return Path(huggingface_hub.hf_hub_download(repo, name, revision=revision))
            except EntryNotFoundError:
                return None

    path = fetched(CONFIG)
    if path is None:
        raise HubError(f"`{repo}` has no `{CONFIG}`", hint="a model in the layout of transformers")
    config = read_json(path.resolve())
    if not isinstance(config, dict):
        raise InputError(f"`{CONFIG}` of `{repo}` is not a JSON object")
    index = fetched(INDEX)
    shards = shard_names(read_weight_map(index.parent)) if index else [SINGLE]
    names: dict[str, TensorInfo] = {}
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for header in pool.map(lambda shard: _header(repo, revision, shard), shards):
            names |= header
    return RemoteHeaders(config, names)


def _header(repo: str, revision: str | None, shard: str) -> dict[str, TensorInfo]:
    """Every tensor of one shard; none where the repository has no such file."""
    raw, size = _ranged(repo, revision, shard, FIRST)
    if size < 8:
        return {}
    (length,) = struct.unpack("<Q", raw[:8])
    if length > MAX_HEADER or length > size - 8:
        raise IntegrityError(f"`{shard}` is not a sound safetensors file")
    if length > len(raw) - 8:
        raw, size = _ranged(repo, revision, shard, length + 8)
    return parse_header(raw[8 : 8 + length], shard, size)


def _ranged(repo: str, revision: str | None, shard: str, count: int) -> tuple[bytes, int]:
    """The first `count` bytes of a file and its size; nothing where it does not exist."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import hf_raise_for_status

    url = hf_hub_url(repo, shard, revision=revision)
    headers = {**build_hf_headers(), "Range": f"bytes=0-{count - 1}"}
    with (
        hub_errors(repo, revision),
        get_session().stream("GET", url, headers=headers, follow_redirects=True) as response,
    ):
        try:
            hf_raise_for_status(response)
        except EntryNotFoundError:
            return b"", 0
        whole = response.headers.get("Content-Range", "").rpartition("/")[2]
        raw = b""
        for piece in response.iter_bytes():  # a server that ignores ranges sends all of it
            raw += piece
            if len(raw) >= count:
                break
        size = int(whole or response.headers.get("Content-Length", str(len(raw))))
        return raw[:count], size
