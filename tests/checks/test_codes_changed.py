"""Weights that are not the written ones, by our own hashes."""

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
        ("gptq_v2", "qzeros"),
        ("awq", "qweight"),
        ("pack", "weight_packed"),
        ("w8a8", "weight"),
        ("fp8", "weight"),
        ("mxfp4", "weight_scale"),
        ("nvfp4", "weight_packed"),
        ("nf4", "weight"),
        ("nf4_double", "weight.nested_absmax"),
        ("modelopt", "weight"),
    ],
)
def test_one_flipped_bit(copied: Copied, form: str, part: str) -> None:
    folder = copied(form)

    def flip(tensor: torch.Tensor) -> torch.Tensor:
        flat = tensor.view(-1).view(torch.uint8)
        flat[40 % len(flat)] ^= 2
        return tensor

    folder.change(f"{Q}.{part}", flip)
    assert codes(folder) == [("codes-changed", Q)]


def test_a_doubled_scale(copied: Copied) -> None:
    folder = copied("gptq")
    folder.change(f"{Q}.scales", lambda tensor: tensor * 2)
    assert codes(folder) == [("codes-changed", Q)]
