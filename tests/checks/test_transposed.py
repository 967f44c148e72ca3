"""A square weight that is transposed."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"
Sources = Callable[[str], Path]


def test_it_is_named_where_the_source_shows_it(copied: Copied, sources: Sources) -> None:
    folder = copied("w8a8").foreign()
    original = load_file(sources("llama") / "model.safetensors")[f"{Q}.weight"].float().T
    scale = original.abs().amax(1, keepdim=True) / 127
    tensors = folder.tensors()
    tensors[f"{Q}.weight"] = (original / scale).round().to(torch.int8)
    tensors[f"{Q}.weight_scale"] = scale
    folder.store(tensors)
    assert codes(folder, source=str(sources("llama"))) == [("transposed", Q)]
