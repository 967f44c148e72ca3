"""A tensor in other numbers than its format has."""

from collections.abc import Callable

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("form", "part", "dtype"),
    [
        ("gptq", "scales", torch.int32),
        ("gptq", "qweight", torch.float32),
        ("pack", "weight_packed", torch.int64),
        ("w8a8", "weight", torch.uint8),
    ],
)
def test_a_part_of_a_quantized_linear(
    copied: Copied, form: str, part: str, dtype: torch.dtype
) -> None:
    folder = copied(form).foreign()
    folder.change(f"{Q}.{part}", lambda tensor: tensor.to(dtype))
    assert codes(folder) == [("tensor-dtype", f"{Q}.{part}")]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.bool])
def test_whole_numbers_in_the_place_of_floats(copied: Copied, dtype: torch.dtype) -> None:
    folder = copied("gptq").foreign()
    folder.change("model.embed_tokens.weight", lambda t: (t * 100).to(dtype))
    assert codes(folder) == [("tensor-dtype", "model.embed_tokens.weight")]
