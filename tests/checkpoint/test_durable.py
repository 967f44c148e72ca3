"""The output under faults: nothing half-done ever bears its name."""

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quantkit.checkpoint.reader import open_checkpoint
from quantkit.checkpoint.shards import TensorSpec
from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.errors import ResourceError

SPECS = [TensorSpec(f"t{i}", "I32", (64,)) for i in range(8)]


def write(output: Path) -> None:
    """Four shards, an index, two small files."""
    with ArtifactWriter(output, SPECS, 800) as writer:
        for i, spec in enumerate(SPECS):
            writer.add(spec.name, torch.full(spec.shape, i, dtype=torch.int32))
        writer.write_json("config.json", {"model_type": "llama"})
        writer.write_bytes("LICENSE", b"free")
        writer.publish()


def check(output: Path) -> None:
    checkpoint = open_checkpoint(output)
    assert [int(checkpoint.tensor(spec.name)[63]) for spec in SPECS] == list(range(8))


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_mode_is_the_umask_s(tmp_path: Path) -> None:
    output = tmp_path / "out"
    write(output)
    assert {path.stat().st_mode & 0o777 for path in output.iterdir()} == {0o640}
    assert output.stat().st_mode & 0o777 == 0o750


def test_files_are_synced_before_they_get_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    fsync, rename, pwrite = os.fsync, Path.rename, os.pwrite

    def recorded(kind: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(what: Any, *rest: Any) -> Any:
            info = os.fstat(what) if isinstance(what, int) else what.stat()
            events.append((kind, info.st_ino))
            return real(what, *rest)

        return call

    monkeypatch.setattr(os, "fsync", recorded("fsync", fsync))
    monkeypatch.setattr(os, "pwrite", recorded("pwrite", pwrite))
    monkeypatch.setattr(Path, "rename", recorded("rename", rename))
    write(tmp_path / "out")
    names = {path.stat().st_ino: path.name for path in (tmp_path / "out").iterdir()}
    renames = [i for i, (kind, inode) in enumerate(events) if kind == "rename" and inode in names]
    assert len(renames) == len(names)
    for i in renames:
        before = [kind for kind, inode in events[:i] if inode == events[i][1]]
        assert before[-1] == "fsync", names[events[i][1]]
    folder, parent = (path.stat().st_ino for path in (tmp_path / "out", tmp_path))
    assert events[-3:] == [("fsync", folder), ("rename", folder), ("fsync", parent)]


@pytest.mark.parametrize(
    ("module", "call"),
    [(os, "pwrite"), (os, "write"), (os, "fsync"), (os, "posix_fallocate"), (os, "open"),
     (Path, "rename"), (Path, "unlink")],
)  # fmt: skip
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_every_call_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, call: str, code: int
) -> None:
    """The n-th call fails, for every n there is: exit code 5 and no trace, or the work was done."""
    real = getattr(module, call)
    for nth in range(1000):
        root = tmp_path / f"{nth}"
        root.mkdir()
        left = [nth]

        def failing(*args: Any, left: list[int] = left, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == -1:
                raise OSError(code, os.strerror(code))
            return real(*args, **options)

        monkeypatch.setattr(module, call, failing)
        try:
            write(root / "out")
            failed = False
        except ResourceError as error:
            failed = True
            assert os.strerror(code) in str(error)  # noqa: PT017 - the last round succeeds
        monkeypatch.setattr(module, call, real)
        if failed and (root / "out.partial").exists():  # whole, but its name could not be given
            (root / "out.partial").rename(root / "out")
        if (root / "out").exists():
            check(root / "out")
        else:
            assert failed
            assert list(root.iterdir()) == []
        if left[0] >= 0:
            break
    assert nth > 0


CHILD = """
import sys, time
from pathlib import Path
import torch
from quantkit.checkpoint.shards import TensorSpec
from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.errors import QuantkitError
"""


def run_child(program: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD + program, *args],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_a_limit_on_file_size_is_an_error_for_people(tmp_path: Path) -> None:
    program = """
try:
    with ArtifactWriter(Path(sys.argv[1]), [TensorSpec("w", "I8", (200_000_000,))]):
        print("no error")
except QuantkitError as error:
    print(error.exit_code, error)
"""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000_000, 100_000_000))

    done = run_child(program, str(tmp_path / "out"), preexec_fn=limit)
    assert done.stdout.startswith("5 cannot write"), done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stage", ["reserved", "half", "weights", "sums"])
def test_a_kill_leaves_the_output_untouched(tmp_path: Path, stage: str) -> None:
    program = """
import os, signal
from quantkit.checkpoint import writer as module
stage = sys.argv[2]
def die():
    os.kill(os.getpid(), signal.SIGKILL)
specs = [TensorSpec(f"t{i}", "I32", (64,)) for i in range(8)]
with ArtifactWriter(Path(sys.argv[1]), specs, 600) as w:
    if stage == "reserved":
        die()
    for i in range(8):
        w.add(f"t{i}", torch.full((64,), i, dtype=torch.int32))
        if stage == "half" and i == 4:
            die()
    w.finish_weights()
    if stage == "weights":
        die()
    module._sums = lambda folder: die()
    w.publish()
"""
    output = tmp_path / "out"
    done = run_child(program, str(output), stage)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["out.partial"]
    write(output)  # the next run takes over what the dead one left
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    check(output)


@pytest.mark.long
def test_memory_does_not_grow_with_the_output(tmp_path: Path) -> None:
    """400 MB in tensors of 40 MB: of anonymous memory less than two of them.

    Tensors of more than 32 MiB go back to the system when freed (glibc's mallopt(3)); smaller ones
    may stay in the heap, and the test would measure that.
    """
    program = """
def anonymous():
    text = Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) * 1024
size = 40_000_000
specs = [TensorSpec(f"t{i}", "BF16", (size // 2,)) for i in range(10)]
torch.aminmax(torch.ones(100).bfloat16())
before, most = anonymous(), 0
with ArtifactWriter(Path(sys.argv[1]), specs, 100_000_000) as writer:
    for spec in specs:
        writer.add(spec.name, torch.ones(spec.shape, dtype=torch.bfloat16))
        most = max(most, anonymous())
    writer.publish()
    most = max(most, anonymous())
print((most - before) / size)
"""
    done = run_child(program, str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.5
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 5
