"""A weight that is further from the source than its bits explain."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"
Sources = Callable[[str], Path]


@pytest.mark.parametrize(
    ("form", "part"),
    [
        ("gptq", "scales"),
        ("gptq_w8", "scales"),
        ("gptq_v2", "scales"),
        ("awq", "scales"),
        ("pack", "weight_scale"),
        ("w8a8", "weight_scale"),
        ("fp8", "weight_scale"),
        ("fp8_block", "weight_scale"),
        ("nvfp4", "weight_global_scale"),
        ("nf4", "weight.absmax"),
        ("modelopt", "weight_scale"),
    ],
)
def test_doubled_scales(copied: Copied, sources: Sources, form: str, part: str) -> None:
    folder = copied(form).foreign()
    folder.change(f"{Q}.{part}", lambda tensor: tensor * 2)
    assert codes(folder, source=str(sources("llama"))) == [("weight-differs", Q)]


def test_one_doubled_scale_of_many(copied: Copied, sources: Sources) -> None:
    folder = copied("gptq").foreign()

    def plant(tensor: torch.Tensor) -> torch.Tensor:
        tensor[1, 5] *= 2
        return tensor

    folder.change(f"{Q}.scales", plant)
    assert codes(folder, source=str(sources("llama"))) == [("weight-differs", Q)]


@pytest.mark.parametrize("form", ["gptq", "awq", "pack", "fp8"])
def test_rows_that_changed_places(copied: Copied, sources: Sources, form: str) -> None:
    folder = copied(form).foreign()
    tensors = folder.tensors()
    for name, tensor in tensors.items():
        if name.startswith(f"{Q}.") and tensor.ndim == 2:
            tensors[name] = tensor.view(torch.uint8 if form == "fp8" else tensor.dtype)
            flipped = tensors[name].flip(int(form in ("gptq", "awq")))
            tensors[name] = flipped.view(tensor.dtype)
    folder.store(tensors)
    assert codes(folder, source=str(sources("llama"))) == [("weight-differs", Q)]
