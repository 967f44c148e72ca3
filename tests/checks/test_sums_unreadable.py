"""SHA256SUMS that is none."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_a_line_that_is_no_sum(copied: Copied) -> None:
    folder = copied("gptq")
    (folder.path / "SHA256SUMS").write_text("../../etc/passwd\n")
    assert codes(folder) == [("sums-unreadable", "SHA256SUMS")]
