"""A weight file that was cut off."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_the_file_is_named_once(copied: Copied) -> None:
    folder = copied("awq")
    path = folder.path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert codes(folder) == [("shard-truncated", "model.safetensors")]
