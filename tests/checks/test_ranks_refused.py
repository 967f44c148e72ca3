"""A number of ranks among which an engine cannot divide a folder."""

from collections.abc import Callable

from tests.checks.conftest import Folder, codes, verified

Copied = Callable[..., Folder]


def test_heads_that_do_not_divide(copied: Copied) -> None:
    found = verified(copied("gptq"), engine="vllm", tp=3).problems
    assert [(p.code, p.path) for p in found] == [("ranks-refused", "config.json")]
    assert found[0].remedy == "--tp 2"


def test_groups_that_do_not_divide(copied: Copied) -> None:
    folder = copied("gptq_w8")
    assert codes(folder, engine="vllm", tp=2) == []
    assert codes(folder, engine="vllm", tp=4) == [("ranks-refused", "config.json")]
