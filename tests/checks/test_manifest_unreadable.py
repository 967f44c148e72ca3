"""A manifest that is none."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_it_is_named(copied: Copied) -> None:
    folder = copied("gptq")
    (folder.path / "quantkit.json").write_text("{}")
    assert codes(folder) == [("manifest-unreadable", "quantkit.json")]
