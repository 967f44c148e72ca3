"""A copied tensor that is not the source's."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Sources = Callable[[str], Path]


@pytest.mark.parametrize("name", ["model.norm.weight", "lm_head.weight"])
def test_it_is_named(copied: Copied, sources: Sources, name: str) -> None:
    folder = copied("gptq").foreign()
    folder.change(name, lambda tensor: tensor * 1.1)
    assert codes(folder, source=str(sources("llama"))) == [("tensor-differs", name)]


def test_another_dtype_is_no_fault(copied: Copied, sources: Sources) -> None:
    folder = copied("gptq").foreign()
    folder.change("model.norm.weight", lambda tensor: tensor.half())
    assert codes(folder, source=str(sources("llama"))) == []


def test_a_norm_that_no_linear_undoes(copied: Copied, sources: Sources) -> None:
    folder = copied("w8a8").foreign()
    name = "model.layers.1.input_layernorm.weight"

    def plant(tensor: torch.Tensor) -> torch.Tensor:
        tensor[::2] *= 3
        return tensor

    folder.change(name, plant)
    assert ("tensor-differs", name) in codes(folder, source=str(sources("llama")))
