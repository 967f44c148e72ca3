"""A writer with a journal: what was committed outlives kills, failures and full disks."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from quantkit.checkpoint.claim import discard
from quantkit.checkpoint.journal import Journal
from quantkit.checkpoint.shards import TensorSpec
from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.errors import InputError, IntegrityError, RefusedError, ResourceError

SPECS = [TensorSpec(f"t{i}", "I32", (64,)) for i in range(8)]
JOB = {"recipe": "one"}
BLOCKS = (("t0", "t5"), ("t1", "t2"), ("t6",))


class Stop(Exception):  # noqa: N818 - not an error
    """Ends a run early."""


def value(name: str) -> torch.Tensor:
    return torch.full((64,), int(name[1:]), dtype=torch.int32)


def write(output: Path, *, until: int = 99, job: dict[str, Any] = JOB, job_room: int = 0) -> int:
    """Blocks of tensors, then the rest; returns how many blocks were there already."""
    journal = Journal(output, job, None, job_room)
    with ArtifactWriter(output, SPECS, 1200, journal) as writer:
        done = len(journal.blocks)
        for index in range(done, len(BLOCKS)):
            if index == until:
                raise Stop
            kept = journal.keep([torch.full((50,), index)])
            for name in BLOCKS[index]:
                writer.add(name, value(name))
            writer.commit({"block": index, "hidden": kept})
        for name in ("t3", "t4", "t7"):
            writer.add(name, value(name))
        writer.write_json("config.json", {"model_type": "llama"})
        writer.publish()
    return done


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    write(tmp_path / "whole")
    found = content(tmp_path / "whole")
    shutil.rmtree(tmp_path / "whole")
    assert list(tmp_path.iterdir()) == []
    return found


@pytest.mark.parametrize("blocks", [1, 2])
def test_it_goes_on_after_the_committed_blocks(
    tmp_path: Path, whole: dict[str, bytes], blocks: int
) -> None:
    with pytest.raises(Stop):
        write(tmp_path / "out", until=blocks)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.journal", "out.partial"]
    assert write(tmp_path / "out") == blocks
    assert content(tmp_path / "out") == whole
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_without_a_block_nothing_stays(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        write(tmp_path / "out", until=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [InputError, RefusedError, IntegrityError])
def test_what_would_fail_again_is_not_kept(tmp_path: Path, error: type[Exception]) -> None:
    def fail() -> None:
        with ArtifactWriter(tmp_path / "out", SPECS, 800, journal) as writer:
            writer.add("t0", value("t0"))
            writer.commit({"hidden": journal.keep([])})
            raise error("wrong")

    journal = Journal(tmp_path / "out", JOB)
    with pytest.raises(error):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_another_run_is_refused_and_harms_nothing(tmp_path: Path, whole: dict[str, bytes]) -> None:
    with pytest.raises(Stop):
        write(tmp_path / "out", until=2)
    before = content(tmp_path / "out.partial") | content(tmp_path / "out.journal")
    with pytest.raises(RefusedError, match="recipe differs"):
        write(tmp_path / "out", job={"recipe": "two"})
    assert content(tmp_path / "out.partial") | content(tmp_path / "out.journal") == before
    assert write(tmp_path / "out") == 2
    assert content(tmp_path / "out") == whole


def test_to_remove_the_partial_folder_is_to_start_anew(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    with pytest.raises(Stop):
        write(tmp_path / "out", until=2)
    shutil.rmtree(tmp_path / "out.partial")
    assert write(tmp_path / "out", job={"recipe": "two"}) == 0
    assert content(tmp_path / "out") == whole


def test_a_committed_tensor_that_has_changed_is_found(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        write(tmp_path / "out", until=2)
    path = next((tmp_path / "out.partial").glob("*00001-of*"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="is not what was written"):
        write(tmp_path / "out")


def test_a_missing_shard_is_found(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        write(tmp_path / "out", until=1)
    next((tmp_path / "out.partial").glob("*00001-of*")).unlink()
    with pytest.raises(IntegrityError, match="is not what was written"):
        write(tmp_path / "out")


@pytest.mark.parametrize(
    ("module", "call", "code"),
    [
        (os, "pwrite", errno.ENOSPC),
        (os, "write", errno.ENOSPC),
        (os, "fsync", errno.EIO),
        (os, "posix_fallocate", errno.ENOSPC),
        (os, "open", errno.EDQUOT),
        (os, "ftruncate", errno.EIO),
        (Path, "rename", errno.EIO),
        (Path, "unlink", errno.EIO),
        (Path, "mkdir", errno.ENOSPC),
    ],
)
def test_after_any_failed_call_it_goes_on_to_the_same_bytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole: dict[str, bytes],
    module: Any,
    call: str,
    code: int,
) -> None:
    real, resumed = getattr(module, call), 0
    for nth in range(1000):
        root = tmp_path / f"{nth}"
        root.mkdir()
        failing, left = fails_once(real, nth, code)
        monkeypatch.setattr(module, call, failing)
        try:
            write(root / "out")
        except ResourceError as error:
            assert error.exit_code == 5  # noqa: PT017 - the last round succeeds
        monkeypatch.setattr(module, call, real)
        if (root / "out").exists():
            discard(root / "out")
        else:
            resumed += write(root / "out") > 0
        assert content(root / "out") == whole
        assert [path.name for path in root.iterdir()] == ["out"]
        shutil.rmtree(root)
        if left[0] >= 0:
            break
    assert nth > 0
    assert resumed > 0 or call in ("mkdir", "posix_fallocate")


def fails_once(
    real: Callable[..., Any], nth: int, code: int
) -> tuple[Callable[..., Any], list[int]]:
    """`real`, of which call number `nth` fails; and how many are left to it."""
    left = [nth]

    def failing(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(code, os.strerror(code))
        return real(*args, **options)

    return failing, left


def test_room_for_hidden_states_is_required_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ResourceError, match="are missing"):
        write(tmp_path / "out", job_room=1_000_000)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_meanwhile_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "out", JOB)
    journal.begin()
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ResourceError, match="4,000 bytes are needed, 1,000 are free, 3,000 are"):
        journal.keep([torch.zeros(1000)])


def test_what_a_kill_left_beside_a_complete_output_is_removed(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        write(tmp_path / "out", until=2)
    discard(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "precious").touch()
    discard(tmp_path / "out")  # somebody else's
    assert (tmp_path / "out.partial" / "precious").exists()
