"""A code that stands for NaN."""

from collections.abc import Callable

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize("form", ["fp8", "fp8_block", "modelopt"])
def test_one_of_them(copied: Copied, form: str) -> None:
    folder = copied(form)

    def plant(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(torch.uint8)[5, 5] = 0x7F
        return tensor

    folder.change(f"{Q}.weight", plant)
    assert codes(folder) == [("code-not-a-number", f"{Q}.weight")]
