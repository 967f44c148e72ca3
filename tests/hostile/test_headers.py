"""Weight files and indexes that are not what they say."""

import json
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.hostile.scene import PLAN, VERIFY, Case, Scene, cases, parameters

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
MILLION = 10**6


def header(content: Any, data: bytes = bytes(8)) -> Callable[[Scene], None]:
    return lambda scene: scene.header(content, data)


def raw(data: bytes) -> Callable[[Scene], None]:
    return lambda scene: scene.write("model.safetensors", data)


def index(content: Any) -> Callable[[Scene], None]:
    def spoil(scene: Scene) -> None:
        text = content if isinstance(content, str) else json.dumps({"weight_map": content})
        scene.write("model.safetensors.index.json", text)
        (scene.model / "model.safetensors").rename(scene.model / "model-1.safetensors")

    return spoil


def unlisted(scene: Scene) -> None:
    """A tensor of the shard that the index does not name."""
    path = scene.model / "model.safetensors"
    (size,) = struct.unpack("<Q", path.read_bytes()[:8])
    names = [name for name in json.loads(path.read_bytes()[8 : 8 + size]) if name != "__metadata__"]
    path.rename(scene.model / "model-1.safetensors")
    index_ = dict.fromkeys(names[:-1], "model-1.safetensors")
    scene.write("model.safetensors.index.json", json.dumps({"weight_map": index_}))


def long_header(scene: Scene) -> None:
    """99 MB of entries of no bytes, and of one."""
    names = (f"model.layers.{i}.{'x' * 40}" for i in range(700_000))
    entries = (
        f'"{name}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{i + 1}]}}'
        for i, name in enumerate(names)
    )
    text = "{" + ",".join(entries) + "}"
    scene.header(text.encode(), bytes(700_000))


def blank_header(scene: Scene) -> None:
    scene.header(b"{" + b" " * (99 * MILLION) + b"}")


def listed_header(scene: Scene) -> None:
    scene.header(
        b'{"a":{"dtype":"U8","shape":[' + b"1," * 33 * MILLION + b'1],"data_offsets":[0,1]}}'
    )


def long_index(scene: Scene) -> None:
    index({f"{'x' * 40}{i}": "model-1.safetensors" for i in range(900_000)})(scene)


def shards(scene: Scene) -> None:
    index({f"t{i}": f"model-{i}.safetensors" for i in range(200_000)})(scene)


def linked(scene: Scene) -> None:
    (scene.home / "weights").write_bytes((scene.model / "model.safetensors").read_bytes())
    (scene.model / "model.safetensors").unlink()
    (scene.model / "model.safetensors").symlink_to(scene.home / "weights")


def looped(scene: Scene) -> None:
    (scene.model / "model.safetensors").unlink()
    (scene.model / "model.safetensors").symlink_to("model.safetensors")


def piped(name: str) -> Callable[[Scene], None]:
    import os

    def spoil(scene: Scene) -> None:
        (scene.model / name).unlink(missing_ok=True)
        os.mkfifo(scene.model / name)

    return spoil


def device(name: str) -> Callable[[Scene], None]:
    def spoil(scene: Scene) -> None:
        (scene.model / name).unlink(missing_ok=True)
        (scene.model / name).symlink_to("/dev/zero")

    return spoil


def pickled(scene: Scene) -> None:
    (scene.model / "model.safetensors").unlink()
    scene.write("pytorch_model.bin", b"cos\nsystem\n(S'touch run'\ntR.")


HEADERS = cases(
    {
        "empty": (raw(b""), (6,), "model.safetensors"),
        "short": (raw(b"1234567"), (6,), "model.safetensors"),
        "beyond": (raw(struct.pack("<Q", 2**63)), (6,), "model.safetensors"),
        "larger-than-file": (raw(struct.pack("<Q", 4096) + b"{}"), (6,), "model.safetensors"),
        "not-json": (header(b"{nothing}"), (6,), "model.safetensors"),
        "list": (header([1]), (6,), "model.safetensors"),
        "nested": (header(b"{" + b'"a":[' * 100_000), (6,), "model.safetensors"),
        "twice": (header(b'{"a":1,"a":2}'), (6,), "model.safetensors"),
        "utf-8": (header(b'{"\xff":1}'), (6,), "model.safetensors"),
        "surrogate": (header(b'{"\\ud800":1}'), (6,), "model.safetensors"),
        "name": (header({"../../x": ENTRY}), (6,), "model.safetensors"),
        "long-name": (header({"x" * MILLION: ENTRY}), (6,), "model.safetensors"),
        "escape-name": (header({"\x1b[2J": ENTRY}), (6,), "model.safetensors"),
        "dtype": (header({"a": ENTRY | {"dtype": "F7"}}), (4,), "F7"),
        "long-dtype": (header({"a": ENTRY | {"dtype": "F" * MILLION}}), (4,), "model.safetensors"),
        "negative": (header({"a": ENTRY | {"shape": [-2]}}), (6,), "model.safetensors"),
        "huge-shape": (header({"a": ENTRY | {"shape": [2**44] * 8}}), (6,), "model.safetensors"),
        "digits": (
            header(b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b"]}}"),
            (6,),
            "model.safetensors",
        ),
        "overlap": (header({"a": ENTRY, "b": ENTRY}), (6,), "overlaps"),
        "gap": (header({"a": ENTRY | {"data_offsets": [8, 16]}}, bytes(16)), (6,), "gap"),
        "rest": (header({"a": ENTRY}, bytes(9)), (6,), "unexpected"),
        "metadata": (header({"__metadata__": {"a": 1}, "a": ENTRY}), (6,), "__metadata__"),
        "99-mb-names": (long_header, (2, 4, 6), "model"),
        "99-mb-blank": (blank_header, (6,), "model"),
        "99-mb-list": (listed_header, (6,), "model.safetensors"),
        "linked": (linked, (2,), "model.safetensors"),
        "looped": (looped, (2,), "model"),
        "fifo": (piped("model.safetensors"), (2,), "model"),
        "device": (device("model.safetensors"), (2,), "model"),
        "pickle": (pickled, (4,), "pytorch_model.bin"),
    }
) | cases({"99-mb-names": (long_header, (2, 4, 6), "model")}, {"plan": PLAN, "verify": VERIFY})
INDEX = cases(
    {
        "index-list": (index("[]"), (2,), "index"),
        "index-empty": (index("{}"), (2,), "index"),
        "index-path": (index({"a": "../model.safetensors"}), (2,), "index"),
        "index-number": (index({"a": 1}), (2,), "index"),
        "index-missing": (index({"a": "gone.safetensors"}), (6,), "gone.safetensors"),
        "index-other": (index({"a": "model-1.safetensors"}), (6,), "index"),
        "index-60-mb": (long_index, (2, 6), "index"),
        "index-shards": (shards, (6,), "model-"),
        "index-fifo": (piped("model.safetensors.index.json"), (2,), "index"),
        "index-device": (device("model.safetensors.index.json"), (2,), "index"),
        "index-unlisted": (unlisted, (6,), "model.norm.weight"),
    }
)
CASES = {**HEADERS, **INDEX}


@pytest.mark.parametrize("name", parameters(CASES))
def test_headers_and_indexes(name: str, refused: Callable[[Case], None]) -> None:
    refused(CASES[name])
