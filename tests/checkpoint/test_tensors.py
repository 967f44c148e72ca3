from pathlib import Path
from typing import Any

import pytest
import torch

from quantkit.checkpoint.files import opened
from quantkit.checkpoint.reader import open_checkpoint
from quantkit.checkpoint.tensors import _read_in_threads
from quantkit.core.errors import IntegrityError


def test_a_tensor_is_read_in_pieces_by_several_threads(
    tiny_checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint(shards=2))
    whole = {name: checkpoint.tensor(name) for name in checkpoint.names}
    monkeypatch.setattr("quantkit.checkpoint.tensors.READERS", 3)
    monkeypatch.setattr("quantkit.checkpoint.tensors.PIECE", 1000)
    assert all(torch.equal(checkpoint.tensor(name), whole[name]) for name in whole)
    path = tmp_path / "short"
    path.write_bytes(bytes(10_000))
    with opened(path) as (fd, _), pytest.raises(IntegrityError, match="too early"):
        _read_in_threads(path, fd, memoryview(bytearray(10_001)), 0)
