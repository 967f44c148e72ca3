"""A source that the folder was not made of."""

from collections.abc import Callable
from pathlib import Path

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


def test_another_seed(copied: Copied, tiny_checkpoint: Callable[..., Path]) -> None:
    other = tiny_checkpoint("llama", dtype="bfloat16", seed=9)
    assert codes(copied("gptq"), source=str(other)) == [("other-source", "source")]


def test_another_width(copied: Copied, tiny_checkpoint: Callable[..., Path]) -> None:
    other = tiny_checkpoint("llama", dtype="bfloat16", vocab_size=300)
    assert ("other-source", "source") in codes(copied("gptq"), source=str(other))
