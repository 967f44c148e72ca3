"""A file that SHA256SUMS names and that is not there."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_it_is_named(copied: Copied) -> None:
    folder = copied("gptq")
    (folder.path / "tokenizer.json").unlink()
    assert codes(folder) == [("file-missing", "tokenizer.json")]
