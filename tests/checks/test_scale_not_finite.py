"""A scale that is no number."""

from collections.abc import Callable

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("form", "part"),
    [
        ("gptq", "scales"),
        ("awq", "scales"),
        ("pack", "weight_scale"),
        ("w8a8", "weight_scale"),
        ("fp8", "weight_scale"),
        ("fp8_block", "weight_scale"),
        ("nf4", "weight.absmax"),
        ("nvfp4", "weight_global_scale"),
        ("modelopt", "input_scale"),
    ],
)
def test_one_of_them(copied: Copied, form: str, part: str, value: float) -> None:
    folder = copied(form)

    def plant(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[0] = value
        return tensor

    folder.change(f"{Q}.{part}", plant)
    assert codes(folder) == [("scale-not-finite", f"{Q}.{part}")]


@pytest.mark.parametrize(("form", "code"), [("mxfp4", 255), ("nvfp4", 127)])
def test_a_scale_of_8_bits(copied: Copied, form: str, code: int) -> None:
    folder = copied(form)

    def plant(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(torch.uint8)[3, 1] = code
        return tensor

    folder.change(f"{Q}.weight_scale", plant)
    assert codes(folder) == [("scale-not-finite", f"{Q}.weight_scale")]
