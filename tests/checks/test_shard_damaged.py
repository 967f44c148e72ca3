"""A header that is not valid."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_a_changed_byte_of_the_header(copied: Copied) -> None:
    folder = copied("awq")
    path = folder.path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[8] = ord("[")
    path.write_bytes(bytes(content))
    assert codes(folder) == [("shard-damaged", "model.safetensors")]
