"""GPUs by name, by memory and bandwidth, or as this machine has them."""

import re
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

from quantkit.checkpoint.sizes import parse_size
from quantkit.core.errors import InputError, RefusedError, ResourceError
from quantkit.core.gpu import Gpu

RATES = ("bf16", "fp8", "int8", "fp4")
_STATED = re.compile(
    r"(?P<memory>[\d.]+\s*(?:[kmgt]?i?b|[gm]))(?:@(?P<bandwidth>[\d.]+\s*[a-z]+)/s)?", re.IGNORECASE
)
_MANY = re.compile(r"(?P<count>\d{1,3})\s*x\s*(?P<name>.*\S)", re.IGNORECASE)
_MAKERS = re.compile(r"nvidia|geforce|tesla|amd|instinct|apple|radeon")
_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,compute_cap")
_SECONDS = 5


def find_gpu(text: str) -> Gpu:
    """The GPU that `text` means: a name, `24GB@1008GB/s`, `24GB`, or `local`.

    Raises:
        InputError: no GPU is called so, or several are; those of like names are proposed.
        RefusedError: `local` on a machine where nvidia-smi finds none.
    """
    if text.strip().lower() == "local":
        return local_gpu()
    keys, key = _keys(), _key(text)
    if key in keys:
        return keys[key]
    if stated := _STATED.fullmatch(text.strip()):
        bandwidth = stated["bandwidth"]
        memory = parse_size(stated["memory"], "--gpu ")
        try:
            return Gpu(text.strip(), memory, float(parse_size(bandwidth)) if bandwidth else None)
        except InputError as error:
            raise InputError(error.what, hint=f"--gpu {stated['memory']}@1008GB/s") from error
    if many := _MANY.fullmatch(text.strip()):
        raise InputError(
            f"--gpu takes one GPU, not `{text:.80}`",
            hint=f'--gpu "{many["name"]}" --tp {many["count"]}',
        )
    near = _near(key)
    several = any(key in (_key(_model(g.name)), _key(_without_size(g.name))) for g in near)
    what = f"`{text}` names several GPUs" if several else f"`{text:.80}` is not a known GPU"
    names = ", ".join(gpu.name for gpu in near or known_gpus())
    stated_too = "--gpu 24GB@1008GB/s"
    raise InputError(
        what,
        why=f"{'near' if near else 'known'}: {names}",
        hint=f'--gpu "{near[0].name}", or {stated_too}' if near else stated_too,
    )


def local_gpu() -> Gpu:
    """This machine's first GPU, as nvidia-smi reports it; its speeds where its name is known.

    Raises:
        RefusedError: there is none.
        ResourceError: the output of nvidia-smi cannot be read.
    """
    command = [*_QUERY, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command, found as the user's PATH says
            command, capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RefusedError(
            "nvidia-smi finds no GPU on this machine",
            why=str(error).splitlines()[0],
            hint="--gpu 4090",
        ) from error
    try:
        first = done.stdout.partition("\n")[0]
        name, mebibytes, capability = (part.strip() for part in first.split(","))
        memory = int(mebibytes) * 2**20
    except ValueError as error:
        raise ResourceError(
            f"the output of nvidia-smi cannot be read: {done.stdout[:200]!r}"
        ) from error
    known = _keys().get(_key(name))
    if known is None:
        return Gpu(name, memory, capability=capability, source="nvidia-smi")
    return replace(known, memory=min(known.memory, memory))  # a card of less, or a part of one


@cache
def known_gpus() -> tuple[Gpu, ...]:
    """All GPUs of hardware.toml, in its order."""
    return tuple(_gpu(entry, _table()["sources"]) for entry in _table()["gpu"])


@cache
def _table() -> dict[str, Any]:
    text = resources.files("quantkit.planning.serve").joinpath("hardware.toml").read_text("utf-8")
    return tomllib.loads(text)


def _gpu(entry: Mapping[str, Any], sources: Mapping[str, str]) -> Gpu:
    return Gpu(
        name=entry["name"],
        memory=int(entry["gib"] * 2**30),
        bandwidth=entry["bandwidth"] * 1e9,
        rates={rate: entry[rate] * 1e12 for rate in RATES if rate in entry},
        capability=entry["cc"],
        pcie=entry["pcie"] * 1e9 if "pcie" in entry else None,
        nvlink=entry["nvlink"] * 1e9 if "nvlink" in entry else None,
        source=sources[entry["source"]],
        estimated=tuple(entry.get("estimated", ())),
        note=entry.get("note", ""),
    )


@cache
def _keys() -> dict[str, Gpu]:
    """Every way to write a name; without size and form where only one GPU is called so."""
    keys: dict[str, Gpu] = {}
    for shorten in (_model, _without_size):
        short = [_key(shorten(gpu.name)) for gpu in known_gpus()]
        keys |= {k: gpu for k, gpu in zip(short, known_gpus(), strict=True) if short.count(k) == 1}
    for gpu, entry in zip(known_gpus(), _table()["gpu"], strict=True):
        keys |= {_key(name): gpu for name in (gpu.name, *entry.get("aliases", ()))}
    return keys


def _key(name: str) -> str:
    bare = re.sub(r"[^a-z0-9]", "", _MAKERS.sub("", name.lower()))
    return re.sub(r"(?<=\d)gi?b$", "", bare).removeprefix("rtx")


def _without_size(name: str) -> str:
    return re.sub(r" \d+GB$", "", name)


def _model(name: str) -> str:
    """A name without size and form."""
    return re.sub(r" (SXM|PCIe|NVL|die)$", "", _without_size(name))


def _near(key: str) -> list[Gpu]:
    """GPUs in whose names a key lies, or that lie in it, and those of like names; four at most."""
    keys = _keys()
    inside = [k for k in keys if min(len(k), len(key)) > 2 and (k in key or key in k)]
    inside.sort(key=lambda k: abs(len(k) - len(key)))
    alike = get_close_matches(key, keys, n=3)
    near = {keys[k].name: keys[k] for k in (*inside, *alike)}
    return list(near.values())[:4]
