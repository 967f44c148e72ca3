import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from quantkit.checkpoint import durable
from quantkit.checkpoint.claim import MARKER, check_output
from quantkit.checkpoint.reader import open_checkpoint
from quantkit.checkpoint.shards import TensorSpec
from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.errors import (
    InputError,
    IntegrityError,
    QuantkitError,
    ResourceError,
)


def some_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for i in range(6):
        tensors[f"layers.{i}.w"] = torch.randn(16, 8 + i, generator=generator).bfloat16()
        tensors[f"layers.{i}.codes"] = torch.randint(0, 255, (5 + i,), generator=generator).byte()
        tensors[f"layers.{i}.scales"] = torch.randn(3, generator=generator)
    return tensors | {"scalar": torch.tensor(7), "none": torch.empty(0, 3)}


def specs_of(tensors: dict[str, torch.Tensor]) -> list[TensorSpec]:
    return [TensorSpec.like(name, tensor) for name, tensor in tensors.items()]


def write(
    output: Path,
    tensors: dict[str, torch.Tensor],
    order: list[str] | None = None,
    limit: int = 10**9,
) -> Path:
    with ArtifactWriter(output, specs_of(tensors), limit) as writer:
        for name in order or tensors:
            writer.add(name, tensors[name])
        writer.write_json("config.json", {"model_type": "llama"})
        return writer.publish()


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*")}


@pytest.mark.parametrize("limit", [10**9, 1000, 1])
def test_what_is_written_is_read_by_us_and_by_the_library(tmp_path: Path, limit: int) -> None:
    tensors = some_tensors()
    output = write(tmp_path / "out", tensors, limit=limit)
    checkpoint = open_checkpoint(output)
    theirs: dict[str, torch.Tensor] = {}
    for path in output.glob("*.safetensors"):
        theirs |= load_file(path)
    for name, tensor in tensors.items():
        for read in (checkpoint.tensor(name), theirs[name]):
            assert read.dtype == tensor.dtype
            assert torch.equal(read, tensor)
    assert set(theirs) == set(checkpoint.names) == set(tensors)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_single_file_is_byte_for_byte_the_library_s(tmp_path: Path) -> None:
    tensors = some_tensors()
    output = write(tmp_path / "out", tensors)
    expected = save(tensors, metadata={"format": "pt"})
    assert (output / "model.safetensors").read_bytes() == expected


def test_index_names_every_tensor_and_the_payload(tmp_path: Path) -> None:
    tensors = some_tensors()
    output = write(tmp_path / "out", tensors, limit=1000)
    index = json.loads((output / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": sum(t.nbytes for t in tensors.values())}
    assert list(index["weight_map"]) == sorted(tensors)
    assert all(path.stat().st_size <= 1000 for path in output.glob("*.safetensors"))


def test_bytes_do_not_depend_on_the_order_of_arrival(tmp_path: Path) -> None:
    tensors = some_tensors()
    order = list(tensors)
    first = content(write(tmp_path / "a", tensors, order, 1000))
    for seed in range(3):
        random.Random(seed).shuffle(order)
        assert content(write(tmp_path / f"b{seed}", tensors, order, 1000)) == first


def test_a_view_is_written_in_its_own_order(tmp_path: Path) -> None:
    whole = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    tensors = {"t": whole.T, "part": whole[:, 1:3], "wide": whole[:1].expand(5, 4)}
    checkpoint = open_checkpoint(write(tmp_path / "out", tensors | {"g": torch.ones(2)}))
    assert all(torch.equal(checkpoint.tensor(name), tensors[name]) for name in tensors)


def test_a_parameter_is_written(tmp_path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {"w": torch.nn.Parameter(torch.ones(2))}
    assert open_checkpoint(write(tmp_path / "out", tensors)).tensor("w").tolist() == [1.0, 1.0]


def test_sums_are_what_sha256sum_expects(tmp_path: Path) -> None:
    source = tmp_path / "rag.jinja"
    source.write_text("{{ 1 }}")
    with ArtifactWriter(tmp_path / "out", specs_of(some_tensors()), 1000) as writer:
        for name, tensor in some_tensors().items():
            writer.add(name, tensor)
        writer.copy_side_file(source, "additional_chat_templates/rag.jinja")
        writer.write_json("config.json", {})
        output = writer.publish()
    lines = (output / "SHA256SUMS").read_text().splitlines()
    listed = [line.split("  ", 1)[1] for line in lines]
    files = {p.relative_to(output).as_posix() for p in output.rglob("*") if p.is_file()}
    assert listed == sorted(files - {"SHA256SUMS"})
    if shutil.which("sha256sum"):
        command = ["sha256sum", "-c", "--strict", "--quiet", "SHA256SUMS"]
        subprocess.run(command, cwd=output, check=True)
        (output / "config.json").write_text("{ }")
        assert subprocess.run(command, cwd=output, check=False, capture_output=True).returncode


def test_weights_can_be_read_back_before_publishing(tmp_path: Path) -> None:
    tensors = some_tensors()
    with ArtifactWriter(tmp_path / "out", specs_of(tensors), 1000) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
        writer.write_json("config.json", {})
        writer.finish_weights()
        checkpoint = open_checkpoint(writer.folder)
        assert all(torch.equal(checkpoint.tensor(name), tensors[name]) for name in tensors)
        writer.publish()
    assert open_checkpoint(tmp_path / "out").names == checkpoint.names


def test_side_files_are_copied_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_bytes(bytes(range(256)) * 5)
    with ArtifactWriter(tmp_path / "out", []) as writer:
        writer.copy_side_file(tmp_path / "LICENSE")
        output = writer.publish()
    assert (output / "LICENSE").read_bytes() == (tmp_path / "LICENSE").read_bytes()


# What the caller did wrong


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "out", specs_of(some_tensors())) as writer:
        writer.add("scalar", torch.tensor(7))
        with pytest.raises(QuantkitError, match="19 tensors were never written") as caught:
            writer.publish()
    assert "`layers.0.codes`" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("other", torch.ones(2), "is not a planned tensor"),
        ("w", torch.ones(3), "planned as F32"),
        ("w", torch.ones(2).half(), "planned as F32"),
        ("w", torch.tensor([1.0, float("nan")]), None),
        ("w", torch.tensor([1.0, float("-inf")]), None),
    ],
)
def test_wrong_tensors_are_not_written(
    tmp_path: Path, name: str, tensor: torch.Tensor, words: str | None
) -> None:
    kind = QuantkitError if words else IntegrityError
    with ArtifactWriter(tmp_path / "out", [TensorSpec("w", "F32", (2,))]) as writer:
        with pytest.raises(kind, match=words or "`w` contains NaN or Inf"):
            writer.add(name, tensor)
        writer.add("w", torch.ones(2))
        with pytest.raises(QuantkitError, match="is already written"):
            writer.add("w", torch.ones(2))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float64]
)
def test_nan_is_seen_in_every_float(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.ones(2, 3).to(dtype)
    tensor.view(torch.uint8)[1].fill_(0xFF)
    with ArtifactWriter(tmp_path / "out", [TensorSpec.like("w", tensor)]) as writer:
        writer.add("w", torch.ones(2, 3).to(dtype))
    with (
        ArtifactWriter(tmp_path / "out", [TensorSpec.like("w", tensor)]) as writer,
        pytest.raises(IntegrityError, match="`w` contains NaN or Inf"),
    ):
        writer.add("w", tensor)


def test_equal_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(QuantkitError, match="the same name"):
        ArtifactWriter(tmp_path / "out", [TensorSpec("a", "I8", (1,))] * 2)


# The output folder


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", some_tensors())
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_a_relative_output_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("out"), some_tensors())
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("kind", ["folder", "file", "link", "dangling", "no parent", "dot", "root"])
def test_what_exists_is_refused_and_left(tmp_path: Path, kind: str) -> None:
    output = tmp_path / "out"
    if kind == "folder":
        output.mkdir()
        (output / "x").touch()
    elif kind == "file":
        output.touch()
    elif kind == "link":
        output.symlink_to(tmp_path)
    elif kind == "dangling":
        output.symlink_to("nowhere")
    else:
        output = {"no parent": tmp_path / "a" / "out", "dot": Path(), "root": Path("/")}[kind]
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError) as caught:
        check_output(output)
    assert caught.value.hint
    with pytest.raises(InputError), ArtifactWriter(output, []):
        pass
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with ArtifactWriter(tmp_path / "out", specs_of(some_tensors()), 1000) as writer:
            writer.add("scalar", torch.tensor(7))
            raise error

    with pytest.raises(error):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_leaving_without_publishing_leaves_nothing(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "out", specs_of(some_tensors())) as writer:
        writer.add("scalar", torch.tensor(7))
    assert list(tmp_path.iterdir()) == []


def test_a_name_taken_meanwhile_costs_nothing(tmp_path: Path) -> None:
    """The finished folder stays where it is, and what took its name too."""
    tensors = some_tensors()
    with ArtifactWriter(tmp_path / "out", specs_of(tensors)) as writer:
        for name, tensor in tensors.items():
            writer.add(name, tensor)
        writer.write_json("config.json", {})
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "precious").touch()
        with pytest.raises(ResourceError, match="it is complete"):
            writer.publish()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["precious"]
    assert set(open_checkpoint(tmp_path / "out.partial").names) == set(tensors)


def test_two_runs_do_not_meet(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "out", specs_of(some_tensors())) as writer:
        with (
            pytest.raises(ResourceError, match="another run is writing"),
            ArtifactWriter(tmp_path / "out", []),
        ):
            pass
        for name, tensor in some_tensors().items():
            writer.add(name, tensor)
        writer.publish()
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_somebody_s_folder_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "precious").touch()
    with pytest.raises(InputError, match="already exists"), ArtifactWriter(tmp_path / "out", []):
        pass
    assert (tmp_path / "out.partial" / "precious").exists()


# Disk


def test_lack_of_space_is_found_before_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with (
        pytest.raises(ResourceError, match=r"1,100,\d\d\d are missing"),
        ArtifactWriter(tmp_path / "out", [TensorSpec("w", "I8", (2_000_000,))]),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_mount_point_is_refused_before_any_work() -> None:
    with pytest.raises(InputError, match="mount point") as caught:
        check_output(Path("/proc"))
    assert "/proc/name" in str(caught.value.hint)


def test_a_file_called_lock_is_a_file_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "lock").write_bytes(b"of the model")
    with ArtifactWriter(tmp_path / "out", []) as writer:
        writer.copy_side_file(tmp_path / "lock")
        writer.publish()
    assert (tmp_path / "out" / "lock").read_bytes() == b"of the model"
    assert "  lock\n" in (tmp_path / "out" / "SHA256SUMS").read_text()


def test_a_finished_folder_is_nobody_s_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run starts between the last file and the rename."""
    sync = durable.sync_folder

    def meanwhile(folder: Path) -> None:
        if folder.name == "out.partial" and not (folder / MARKER).exists():
            with pytest.raises(ResourceError, match="another run"), ArtifactWriter(out, []):
                pass
        sync(folder)

    out = tmp_path / "out"
    monkeypatch.setattr(durable, "sync_folder", meanwhile)
    write(out, some_tensors())
    assert set(load_file(out / "model.safetensors")) == set(some_tensors())
