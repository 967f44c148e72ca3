"""Scales that are all the same."""

from collections.abc import Callable

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("form", "part"),
    [
        ("gptq", "scales"),
        ("awq", "scales"),
        ("pack", "weight_scale"),
        ("w8a8", "weight_scale"),
        ("fp8", "weight_scale"),
        ("nf4", "weight.absmax"),
    ],
)
def test_they_are_named(copied: Copied, form: str, part: str) -> None:
    folder = copied(form)
    folder.change(f"{Q}.{part}", lambda tensor: torch.full_like(tensor, 0.01))
    assert codes(folder) == [("scale-constant", Q)]
