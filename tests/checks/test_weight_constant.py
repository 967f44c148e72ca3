"""A matrix of one value."""

from collections.abc import Callable

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_embedding(copied: Copied, value: float) -> None:
    folder = copied("gptq")
    folder.change("model.embed_tokens.weight", lambda tensor: torch.full_like(tensor, value))
    assert codes(folder) == [("weight-constant", "model.embed_tokens.weight")]


def test_a_norm_of_ones_is_no_fault(copied: Copied) -> None:
    folder = copied("gptq").foreign()
    folder.change("model.norm.weight", torch.ones_like)
    assert codes(folder) == []
