"""A scale of 0 over codes that are not."""

from collections.abc import Callable

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize("form", ["gptq", "awq", "pack", "w8a8"])
def test_one_of_them(copied: Copied, form: str) -> None:
    folder = copied(form)
    part = "weight_scale" if form in ("pack", "w8a8") else "scales"

    def plant(tensor: torch.Tensor) -> torch.Tensor:
        tensor[0, 0] = 0
        return tensor

    folder.change(f"{Q}.{part}", plant)
    assert codes(folder) == [("scale-zero", Q)]
