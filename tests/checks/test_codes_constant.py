"""Codes that are all the same."""

from collections.abc import Callable

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("form", "part"),
    [
        ("gptq", "qweight"),
        ("awq", "qweight"),
        ("pack", "weight_packed"),
        ("w8a8", "weight"),
        ("fp8", "weight"),
        ("mxfp4", "weight_packed"),
        ("nf4", "weight"),
    ],
)
def test_they_are_named(copied: Copied, form: str, part: str) -> None:
    folder = copied(form)
    folder.change(f"{Q}.{part}", torch.zeros_like)
    assert codes(folder) == [("codes-constant", Q)]
