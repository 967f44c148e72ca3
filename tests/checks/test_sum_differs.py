"""A file that is not the written one."""

from collections.abc import Callable

import pytest

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "README.md"])
def test_one_more_blank(copied: Copied, name: str) -> None:
    folder = copied("gptq")
    with (folder.path / name).open("a") as file:
        file.write(" ")
    assert codes(folder) == [("sum-differs", name)]


def test_a_copied_weight(copied: Copied) -> None:
    folder = copied("gptq")
    folder.change("model.norm.weight", lambda tensor: tensor * 2)
    assert codes(folder) == [("sum-differs", "model.safetensors")]
