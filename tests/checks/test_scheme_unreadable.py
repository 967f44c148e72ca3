"""A quantization config that states no scheme."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_a_field_of_another_type(copied: Copied) -> None:
    folder = copied("gptq")
    folder.block(group_size="many")
    assert codes(folder) == [("scheme-unreadable", "config.json")]
