"""A tensor or a file that the index does not name."""

from collections.abc import Callable

import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Q = "model.layers.1.self_attn.q_proj"


INDEX = "model.safetensors.index.json"


def test_a_tensor_that_the_index_leaves_out(copied: Copied) -> None:
    folder = copied("gptq", shards=2)
    folder.json(INDEX, lambda index: index["weight_map"].pop(f"{Q}.scales") and None)
    assert codes(folder)[0] == ("tensor-unindexed", f"{Q}.scales")


def test_a_file_that_the_index_leaves_out(copied: Copied) -> None:
    folder = copied("gptq", shards=2)
    folder.store({"stray.weight": torch.ones(2, 2)}, "stray.safetensors")
    assert ("tensor-unindexed", "stray.safetensors") in codes(folder)
