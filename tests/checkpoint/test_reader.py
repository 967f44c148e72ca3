import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from quantkit.checkpoint.dtypes import TORCH_DTYPES
from quantkit.checkpoint.reader import open_checkpoint
from quantkit.core.errors import (
    InputError,
    IntegrityError,
    QuantkitError,
    RefusedError,
    ResourceError,
)

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tiny_checkpoint: Any) -> Path:
    """A model in three shards that the test may spoil."""
    path: Path = tiny_checkpoint(shards=3, private=True)
    return path


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*flat)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_every_tensor_equals_what_the_library_reads(
    tiny_checkpoint: Any, dtype: str, shards: int
) -> None:
    folder = tiny_checkpoint(dtype=dtype, shards=shards)
    expected: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        expected |= load_file(path)
    checkpoint = open_checkpoint(folder)
    assert set(checkpoint.names) == set(expected)
    assert all(same_bits(checkpoint.tensor(name), expected[name]) for name in expected)


def test_every_family_opens(family: str, tiny_checkpoint: Any) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint(family))
    kinds = {"llama_tied": "llama", "gemma3": "gemma3_text"}
    assert checkpoint.config["model_type"] == kinds.get(family, family)
    assert "tokenizer.json" in checkpoint.files
    assert "config.json" not in checkpoint.files
    assert not any(name.endswith(".safetensors") for name in checkpoint.files)


def test_every_dtype_is_read_exactly(tiny_checkpoint: Any) -> None:
    folder = tiny_checkpoint(private=True)
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (8 * 6,), dtype=torch.uint8, generator=generator)
    tensors = {
        name: (raw % 2).bool() if name == "BOOL" else raw.view(dtype).clone()
        for name, dtype in TORCH_DTYPES.items()
    }
    tensors |= {"scalar": torch.tensor(1.5), "none": torch.empty(3, 0, dtype=torch.bfloat16)}
    save_file(tensors, folder / "model.safetensors")
    checkpoint = open_checkpoint(folder)
    for name, tensor in tensors.items():
        assert same_bits(checkpoint.tensor(name), tensor), name
        assert name not in TORCH_DTYPES or checkpoint.names[name].dtype == name


def test_unaligned_tensor_is_read(tiny_checkpoint: Any) -> None:
    folder = tiny_checkpoint(private=True)
    entries = {
        "a": {"dtype": "I8", "shape": [3], "data_offsets": [0, 3]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
    }
    raw = json.dumps(entries).encode()
    data = b"\x01\x02\x03" + torch.tensor([1.5, -2.0]).numpy().tobytes()
    blob = len(raw).to_bytes(8, "little") + raw + data
    (folder / "model.safetensors").write_bytes(blob)
    assert open_checkpoint(folder).tensor("b").tolist() == [1.5, -2.0]


def test_a_tensor_owns_its_memory(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    name = "lm_head.weight"
    first = checkpoint.tensor(name)
    kept = first.clone()
    first.zero_()
    again = checkpoint.tensor(name)
    assert torch.equal(again, kept)
    shard = folder / checkpoint.names[name].shard
    shard.write_bytes(bytes(shard.stat().st_size))
    assert torch.equal(again, kept)


def test_no_descriptor_is_kept(folder: Path) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    checkpoint = open_checkpoint(folder)
    tensors = [checkpoint.tensor(name) for name in checkpoint.names]
    assert tensors
    assert count() == before


def test_opening_imports_no_torch(folder: Path) -> None:
    program = """
import sys
from pathlib import Path
import quantkit.checkpoint.source, quantkit.checkpoint.writer, quantkit.checkpoint.side_files
from quantkit.checkpoint.reader import open_checkpoint
open_checkpoint(Path(sys.argv[1]))
heavy = {"torch", "numpy", "safetensors", "transformers", "huggingface_hub"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True)


def test_unknown_tensor(folder: Path) -> None:
    with pytest.raises(KeyError):
        open_checkpoint(folder).tensor("nothing")


# What is no model folder


def spoiled(folder: Path, error: type[QuantkitError], words: str) -> None:
    with pytest.raises(error) as caught:
        open_checkpoint(folder)
    assert words in str(caught.value)


def test_missing_folder(tmp_path: Path) -> None:
    spoiled(tmp_path / "none", InputError, "does not exist")


def test_file_for_a_folder(folder: Path) -> None:
    spoiled(folder / "config.json", InputError, "it is a file")


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    spoiled(folder, InputError, "it contains no `config.json`")


def test_no_weights(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    spoiled(folder, InputError, "contains no weights")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickles_are_refused_with_a_remedy(folder: Path, name: str) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / name).touch()
    spoiled(folder, RefusedError, "quantkit never loads them\ntry: ")


def test_two_sets_of_weights(folder: Path) -> None:
    save_file({"a": torch.zeros(1)}, folder / "model.safetensors")
    spoiled(folder, InputError, "contains two sets of weights")


def test_index_of_a_single_file(tiny_checkpoint: Any) -> None:
    folder = tiny_checkpoint(private=True)
    names = open_checkpoint(folder).names
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (folder / INDEX).write_text(json.dumps(index))
    assert open_checkpoint(folder).names == names


# Config


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "is not a JSON object"),
        ('{"a": 1, "a": 2}', "has the key 'a' twice"),
        ('{"rms_norm_eps": NaN}', "contains NaN"),
        ("\ufeff{}", "is not valid JSON"),
        ("[" * 100_000, "nests deeper"),
        ('{"num_hidden_layers": 10000000}', "sets `num_hidden_layers` to 10000000"),
        ('{"num_hidden_layers": -4}', "sets `num_hidden_layers` to -4"),
        ('{"num_hidden_layers": "2"}', "sets `num_hidden_layers` to 2"),
        ('{"n_layer": true}', "sets `n_layer` to True"),
        ('{"text_config": {"num_hidden_layers": 100}}', "sets `num_hidden_layers` to 100"),
        (" " * (10 * 2**20 + 1), "more than"),
    ],
)
def test_config_is_not_believed(folder: Path, text: str, words: str) -> None:
    (folder / "config.json").write_text(text, encoding="utf-8")
    spoiled(folder, InputError, words)


# Index


def change_index(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    index = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps(change(index)))


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": null}', "x"]
)
def test_index_is_not_believed(folder: Path, content: str) -> None:
    (folder / INDEX).write_text(content)
    spoiled(folder, InputError, INDEX)


@pytest.mark.parametrize(
    "shard",
    ["../x.safetensors", "/etc/passwd", "/x.safetensors", "sub/x.safetensors", "x\x00.safetensors",
     "..", "", "x.bin", ".safetensors", "c:\\x.safetensors", "*.safetensors", 5, None, ["x"]],
)  # fmt: skip
def test_shards_are_plain_names(folder: Path, shard: Any) -> None:
    change_index(folder, lambda index: {"weight_map": index["weight_map"] | {"z": shard}})
    spoiled(folder, InputError, "which is not a valid shard")


def test_missing_shards_are_counted(folder: Path) -> None:
    for i in (1, 3):
        (folder / f"model-0000{i}-of-00003.safetensors").unlink()
    spoiled(folder, IntegrityError, "2 of 3 shards are missing, first `model-00001-of-00003")


def test_index_at_odds_with_the_shards(folder: Path) -> None:
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    (folder / shards[0]).rename(folder / "x")
    (folder / shards[1]).rename(folder / shards[0])
    (folder / "x").rename(folder / shards[1])
    spoiled(folder, IntegrityError, "it is in `model-0000")


def test_tensor_that_no_shard_has(folder: Path) -> None:
    shard = "model-00001-of-00003.safetensors"
    change_index(folder, lambda index: {"weight_map": index["weight_map"] | {"ghost": shard}})
    spoiled(folder, IntegrityError, "no shard contains it")


def test_tensor_in_two_shards(folder: Path) -> None:
    shards = sorted(folder.glob("*.safetensors"))
    twice = load_file(shards[0]) | load_file(shards[1])
    save_file(twice, shards[1])
    spoiled(folder, IntegrityError, "is both in `model-00001-of-00003.safetensors` and in")


# Shards


@pytest.mark.parametrize("shards", [1, 3])
def test_truncated_shard(tiny_checkpoint: Any, shards: int) -> None:
    folder = tiny_checkpoint(shards=shards, private=True)
    path = sorted(folder.glob("*.safetensors"))[-1]
    os.truncate(path, path.stat().st_size - 1)
    spoiled(folder, IntegrityError, f"`{path.name}` is truncated")


def test_shard_that_is_a_pipe_does_not_hang(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.unlink()
    os.mkfifo(path)
    spoiled(folder, InputError, "is not a regular file")


def test_shard_that_is_a_folder(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.unlink()
    path.mkdir()
    spoiled(folder, InputError, "is not a regular file")


@pytest.mark.parametrize("name", ["model-00002-of-00003.safetensors", "config.json", INDEX])
def test_links_out_of_the_folder_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    spoiled(folder, InputError, "links to a file outside its folder")


def test_link_to_a_device(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.unlink()
    path.symlink_to("/dev/zero")
    spoiled(folder, InputError, "links to a file outside its folder")


def test_links_within_the_folder_are_fine(folder: Path) -> None:
    path = folder / "model-00002-of-00003.safetensors"
    path.rename(folder / "real")
    path.symlink_to("real")
    open_checkpoint(folder)


def test_a_folder_may_itself_be_a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert open_checkpoint(tmp_path / "link").tensor("lm_head.weight").numel()


@pytest.mark.parametrize("store", ["models--a--b/blobs", "blobs/ab"])
def test_links_into_the_blobs_of_a_hub_cache_are_fine(
    folder: Path, tmp_path: Path, store: str
) -> None:
    snapshot = tmp_path / "hub" / "models--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "hub" / store
    snapshot.mkdir(parents=True)
    blobs.mkdir(parents=True)
    for i, path in enumerate(folder.iterdir()):
        path.rename(blobs / str(i))
        (snapshot / path.name).symlink_to(os.path.relpath(blobs / str(i), snapshot))
    checkpoint = open_checkpoint(snapshot)
    assert {info.shard for info in checkpoint.names.values()} == {
        f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)
    }
    checkpoint.check_unchanged()


# While it is being read


@pytest.mark.parametrize("name", ["model-00001-of-00003.safetensors", "config.json"])
@pytest.mark.parametrize("how", ["touch", "replace", "grow"])
def test_a_changed_source_is_noticed(folder: Path, name: str, how: str) -> None:
    checkpoint = open_checkpoint(folder)
    checkpoint.check_unchanged()
    path = folder / name
    info = path.stat()
    if how == "touch":
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 1))
    elif how == "replace":
        (folder / "new").write_bytes(path.read_bytes())
        os.utime(folder / "new", ns=(info.st_atime_ns, info.st_mtime_ns))
        (folder / "new").rename(path)
    elif how == "grow":
        with path.open("ab") as file:
            file.write(b" ")
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    with pytest.raises(IntegrityError, match="changed while it was being read"):
        checkpoint.check_unchanged()
    if name != "config.json":
        tensor = next(n for n, tensor in checkpoint.names.items() if tensor.shard == name)
        with pytest.raises(IntegrityError, match="changed while it was being read"):
            checkpoint.tensor(tensor)


@pytest.mark.parametrize("failures", [2, 3])
def test_a_failing_read_is_tried_again_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    checkpoint = open_checkpoint(folder)
    expected = checkpoint.tensor("lm_head.weight")
    real, left = os.preadv, [failures]

    def preadv(fd: int, buffers: Any, offset: int) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    if failures == 2:
        assert torch.equal(checkpoint.tensor("lm_head.weight"), expected)
    else:
        with pytest.raises(ResourceError, match=r"cannot read .* at byte"):
            checkpoint.tensor("lm_head.weight")


def test_booleans_are_zero_or_one(tiny_checkpoint: Any) -> None:
    folder = tiny_checkpoint(private=True)
    save_file(
        {"m": torch.ones(4, dtype=torch.bool), "n": torch.ones(2)}, folder / "model.safetensors"
    )
    blob = bytearray((folder / "model.safetensors").read_bytes())
    blob[-1] = 7
    (folder / "model.safetensors").write_bytes(blob)
    with pytest.raises(IntegrityError, match="other than 0 and 1"):
        open_checkpoint(folder).tensor("m")
