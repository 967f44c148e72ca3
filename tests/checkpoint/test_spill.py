"""Tensors in a file: what was put there comes back, and nothing is left."""

import gc
import os
from pathlib import Path

import pytest
import torch

from quantkit.checkpoint.spill import Spill
from quantkit.core.errors import ResourceError
from quantkit.model.batches import copied

DTYPES = (torch.bfloat16, torch.float32, torch.float16, torch.int64)


def tensors(seed: int) -> list[torch.Tensor]:
    """Tensors of several dtypes and shapes, among them one without a dimension and an empty one."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [(2, 3, 4), (), (0, 5), (7,)]
    return [
        (100 * torch.randn(shape, generator=draw)).to(dtype)
        for shape, dtype in zip(shapes, DTYPES, strict=True)
    ]


def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    pairs = list(zip(found, expected, strict=True))
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


def test_sequences_of_one_file_are_like_lists(tmp_path: Path) -> None:
    spill = Spill(tmp_path, 1000)
    one, other = copied(tensors(0), spill.batches), copied(tensors(1), spill.batches)
    expected = tensors(0)
    for index in (0, 3, -2):
        one[index] = expected[index] = tensors(2)[index]
    one[1] = expected[1] = torch.randn(50)  # longer than what was there
    del one[2], expected[2]
    assert same(list(one), expected)
    assert same(list(other), tensors(1))
    with pytest.raises(IndexError):
        one[len(one)]


def test_what_is_replaced_takes_no_further_room(tmp_path: Path) -> None:
    batches = copied([torch.zeros(1000)], Spill(tmp_path, 4000).batches)
    for value in range(1000):
        batches[0] = torch.full((1000,), float(value))
    assert float(batches[0][0]) == 999
    assert batches._spill._end == 4000  # type: ignore[attr-defined]  # the file's length


def test_the_file_has_no_name_and_ends_with_its_sequences(tmp_path: Path) -> None:
    batches = Spill(tmp_path, 100).batches()
    batches.append(torch.ones(3))
    fd = batches._spill._fd  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())
    os.fstat(fd)
    del batches
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_disk_without_room_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="not enough disk space") as refused:
        Spill(tmp_path, 1 << 60)
    assert refused.value.exit_code == 5
