"""NaN and infinity in what is not quantized."""

from collections.abc import Callable

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed_tokens.weight"])
def test_one_value_of_many(copied: Copied, name: str, value: float) -> None:
    folder = copied("gptq")

    def plant(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[7] = value
        return tensor

    folder.change(name, plant)
    assert codes(folder) == [("weight-not-finite", name)]


def test_large_values_whose_sum_overflows_are_no_fault(copied: Copied) -> None:
    folder = copied("gptq").foreign()
    folder.change("model.embed_tokens.weight", lambda t: torch.full_like(t, 3e38) * t.sign())
    assert codes(folder) == []
