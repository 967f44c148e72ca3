"""A checkpoint whose files go away while it is open."""

from collections.abc import Callable
from pathlib import Path

import pytest

from quantkit.checkpoint.reader import open_checkpoint
from quantkit.core.errors import ResourceError


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("name", ["model-00001-of-00003.safetensors", "config.json"])
def test_a_file_that_is_gone_may_come_back(
    tiny_checkpoint: Callable[..., Path], name: str, linked: bool
) -> None:
    folder = tiny_checkpoint(shards=3, private=True)
    file = folder / name
    if linked:  # as in a hub's cache
        file = (folder / name).rename(folder / "blob")
        (folder / name).symlink_to("blob")
    checkpoint = open_checkpoint(folder)
    away = folder.parent / "away"
    file.rename(away)
    with pytest.raises(ResourceError, match="is gone"):
        checkpoint.check_unchanged()
    with pytest.raises(ResourceError, match="is gone"):
        checkpoint.sha256(name)
    tensors = [n for n, tensor in checkpoint.names.items() if tensor.shard == name]
    for tensor in tensors[:1]:
        with pytest.raises(ResourceError, match="is gone"):
            checkpoint.tensor(tensor)
    away.rename(file)
    checkpoint.check_unchanged()
    assert len(checkpoint.sha256(name)) == 64
