"""The journal: what was committed is read back whole, and what was not is not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from quantkit.checkpoint.journal import LINES, Journal, require_same_job, unfinished
from quantkit.core.errors import IntegrityError, RefusedError

JOB = {"source": {"model.safetensors": [10, 20]}, "recipe": {"method": "gptq", "bits": 4}}
HIDDEN: list[torch.Tensor | None] = [
    torch.randn(2, 3, 4, dtype=torch.bfloat16),
    None,
    torch.randn(5),
    torch.arange(6, dtype=torch.int64).view(2, 3),
    torch.zeros(0, 4),
]


def begun(folder: Path, blocks: int, hidden: Sequence[torch.Tensor | None] = ()) -> Journal:
    journal = Journal(folder / "out", JOB, {"verb": "quantize"})
    journal.begin()
    for index in range(blocks):
        journal.commit({"block": index, "hidden": journal.keep(hidden)})
    return journal


def read(folder: Path) -> Journal:
    journal = Journal(folder / "out", JOB)
    assert journal.read() is not None
    return journal


def test_blocks_and_the_last_hidden_states_come_back(tmp_path: Path) -> None:
    begun(tmp_path, 3, HIDDEN)
    found = read(tmp_path)
    assert [block["block"] for block in found.blocks] == [0, 1, 2]
    for was, now in zip(HIDDEN, found.kept(), strict=True):
        assert was is now is None or (was is not None and now is not None)
        if was is not None and now is not None:
            assert was.dtype == now.dtype
            assert torch.equal(was, now)
    assert sorted(path.name for path in found.folder.iterdir()) == ["hidden-3", LINES]
    assert unfinished(tmp_path / "out") == ({"verb": "quantize"}, 3)


def test_without_calibration_nothing_but_the_lines_is_kept(tmp_path: Path) -> None:
    begun(tmp_path, 2)
    assert list(read(tmp_path).kept()) == []
    assert [path.name for path in read(tmp_path).folder.iterdir()] == [LINES]


def test_a_torn_last_line_is_dropped_wherever_it_ends(tmp_path: Path) -> None:
    path = begun(tmp_path, 2).folder / LINES
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for length in range(last, len(whole)):
        path.write_bytes(whole[:length])
        found = read(tmp_path)
        assert len(found.blocks) == 1
        found.commit({"block": 1, "hidden": found.keep([])})  # over what is left of the line
        assert path.read_bytes() == whole


def test_a_last_line_of_zeros_is_dropped(tmp_path: Path) -> None:
    """What a file system may leave after a power cut: the length, but not the data."""
    path = begun(tmp_path, 2).folder / LINES
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    path.write_bytes(whole[:last] + bytes(len(whole) - last))
    assert len(read(tmp_path).blocks) == 1


def test_a_torn_first_line_is_no_run(tmp_path: Path) -> None:
    journal = begun(tmp_path, 0)
    path = journal.folder / LINES
    path.write_bytes(path.read_bytes()[:-5])
    assert Journal(tmp_path / "out", JOB).read() is None
    assert unfinished(tmp_path / "out") is None
    assert unfinished(tmp_path / "nothing") is None


@pytest.mark.parametrize("line", [0, 1])
def test_a_damaged_line_is_found(tmp_path: Path, line: int) -> None:
    path = begun(tmp_path, 2).folder / LINES
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b"block" if line else b"gptq", b"BLOCK" if line else b"awqq")
    path.write_bytes(b"".join(lines))
    with pytest.raises(IntegrityError, match=f"line {line + 1} "):
        read(tmp_path)


def test_lines_cannot_change_places(tmp_path: Path) -> None:
    path = begun(tmp_path, 3).folder / LINES
    head, first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(head + second + first + third)
    with pytest.raises(IntegrityError, match="line 2 "):
        read(tmp_path)


@pytest.mark.parametrize("fault", ["flipped", "short", "gone"])
def test_damaged_hidden_states_are_found(tmp_path: Path, fault: str) -> None:
    journal = begun(tmp_path, 1, HIDDEN)
    path = journal.folder / "hidden-1"
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    if fault == "gone":
        path.unlink()
    else:
        path.write_bytes(data if fault == "flipped" else data[:-1])
    with pytest.raises(IntegrityError, match="hidden-1"):
        read(tmp_path).kept()


@pytest.mark.parametrize(
    ("now", "kind", "why"),
    [
        ({"source": {"model.safetensors": [10, 21]}}, IntegrityError, "source differs: model"),
        ({"recipe": {"method": "gptq", "bits": 3}}, RefusedError, r"bits \(4 there, 3 here\)"),
        ({"code": "ab"}, RefusedError, "code differs: None there, ab here"),
    ],
)
def test_another_job_is_refused_with_the_reason(
    now: dict[str, Any], kind: type[Exception], why: str
) -> None:
    require_same_job(Path("out.partial"), JOB, dict(JOB))
    with pytest.raises(kind, match=why) as caught:
        require_same_job(Path("out.partial"), JOB, JOB | now)
    assert "rm -r out.partial" in str(caught.value)
