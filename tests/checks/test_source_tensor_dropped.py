"""A tensor of the source that is nowhere."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checks.conftest import Folder, codes

Copied = Callable[..., Folder]
Sources = Callable[[str], Path]


@pytest.mark.parametrize(
    "name", ["model.layers.2.embed_tokens.weight", "mtp.norm.weight", "model.extra.bias"]
)
def test_one_that_the_model_s_class_lacks(
    copied: Copied, sources: Sources, tmp_path: Path, name: str
) -> None:
    source = Folder(shutil.copytree(sources("llama"), tmp_path / "source"))
    source.store(source.tensors() | {name: torch.randn(128)})
    found = codes(copied("gptq"), source=str(source.path))
    assert found == [("source-tensor-dropped", name)]
