"""A linear that stayed in floats."""

from collections.abc import Callable

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


@pytest.mark.parametrize("form", ["gptq", "pack", "awq"])
def test_a_dense_linear_that_the_config_calls_quantized(copied: Copied, form: str) -> None:
    folder = copied(form).foreign()
    tensors = {k: v for k, v in folder.tensors().items() if not k.startswith(f"{Q}.")}
    folder.store(tensors | {f"{Q}.weight": torch.randn(128, 128).bfloat16()})
    assert codes(folder) == [("not-quantized", Q)]
