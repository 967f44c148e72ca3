import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quantkit.checkpoint import hashes
from quantkit.checkpoint.files import opened, sha256
from quantkit.checkpoint.reader import open_checkpoint
from quantkit.checkpoint.shards import TensorSpec
from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.errors import InputError, IntegrityError


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was hashed, by its name."""
    found: Counter[str] = Counter()

    def counted(path: Path) -> str:
        found[path.name] += 1
        return sha256(path)

    monkeypatch.setattr(hashes, "sha256", counted)
    return found


def finish() -> None:
    for thread in threading.enumerate():
        if thread.name == "sha256":
            thread.join()


def test_reading_a_tensor_starts_the_hash_of_its_file_alone(
    tiny_checkpoint: Callable[..., Path], taken: Counter[str]
) -> None:
    folder = tiny_checkpoint(shards=3, private=True)
    plain = open_checkpoint(folder)
    checkpoint = replace(plain, hashed=True)
    shard = plain.names["model.norm.weight"].shard
    plain.tensor("model.norm.weight")
    finish()
    assert not taken
    for name, info in checkpoint.names.items():
        if info.shard == shard:
            checkpoint.tensor(name)
    finish()
    assert taken == {shard: 1}
    expected = hashlib.sha256((folder / shard).read_bytes()).hexdigest()
    assert checkpoint.sha256(shard) == plain.sha256(shard) == expected
    assert taken == {shard: 1}


def test_a_shard_is_hashed_as_soon_as_it_is_complete_and_once(
    tmp_path: Path, taken: Counter[str]
) -> None:
    specs = [TensorSpec("a", "F32", (8,)), TensorSpec("b", "F32", (8,))]
    with ArtifactWriter(tmp_path / "out", specs, max_shard_size=1) as writer:
        writer.write_json("config.json", {})
        writer.add("b", torch.ones(8))
        finish()
        assert taken == {"model-00002-of-00002.safetensors": 1}
        writer.add("a", torch.zeros(8))
        writer.finish_weights()
        early = open_checkpoint(writer.folder)
        found = {shard: early.sha256(shard) for shard in early.fingerprints}
        writer.write_json("config.json", {"changed": True})
        writer.publish()
    assert taken["config.json"] == 2
    assert [taken[shard.name] for shard in writer.shards] == [1, 1]
    sums = (tmp_path / "out" / "SHA256SUMS").read_text()
    assert all(found[shard.name] in sums for shard in writer.shards)
    for line in sums.splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == digest


def test_whoever_asks_is_told_why_there_is_no_hash(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with opened(path) as (_, fingerprint):
        pass
    path.write_bytes(b"afterwards")
    with pytest.raises(IntegrityError, match="changed while it was being read"):
        hashes.hashing(path, fingerprint).result()
    path.unlink()
    with pytest.raises(InputError, match="is missing"):
        hashes.hashing(path, replace(fingerprint, size=1)).result()


def test_threads_that_ask_at_once_share_a_hash(tmp_path: Path, taken: Counter[str]) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10**6))
    with opened(path) as (_, fingerprint):
        pass
    asking = [threading.Thread(target=hashes.hashing, args=(path, fingerprint)) for _ in range(8)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    finish()
    assert taken == {"file": 1}


def test_a_hash_that_is_waited_for_does_not_stand_behind_others(
    tmp_path: Path, taken: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it taken again when its turn among the others comes."""
    busy = threading.BoundedSemaphore(1)
    monkeypatch.setattr(hashes, "_beside", busy)
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    with opened(path) as (_, fingerprint):
        pass
    with busy:
        queued = hashes.hashing(path, fingerprint)
        digest = hashes.hashing(path, fingerprint, waited_for=True).result(10)
    finish()
    assert queued.result(10) == digest == hashlib.sha256(b"bytes").hexdigest()
    assert taken == {"file": 1}
