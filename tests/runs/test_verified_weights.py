"""Weights that `verify` looks at, one after another in the same memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import quantkit
from quantkit.model.declared import Declared, declare
from quantkit.runs import verified_weights
from quantkit.runs.verified_weights import read_in_turn, stored_weights

LINEARS = 28


@pytest.fixture
def artifact(tiny_checkpoint: Callable[..., Path], tmp_path: Path) -> Declared:
    source = tiny_checkpoint("llama", dtype="bfloat16", num_hidden_layers=4)
    recipe = quantkit.build_recipe("rtn", samples=0)
    quantkit.quantize(str(source), tmp_path / "out", recipe=recipe, evaluate=False)
    return declare(tmp_path / "out")


@pytest.mark.parametrize("ahead", [2**27, 1])
def test_few_pieces_of_memory_hold_many_weights(
    artifact: Declared, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    monkeypatch.setattr(verified_weights, "AHEAD", ahead)
    weights = list(stored_weights(artifact, None, lambda _: True))
    assert len(weights) == LINEARS
    held, names = [], []
    for each, weight in read_in_turn(weights, artifact.checkpoint, lambda _: False):
        assert weight is not None
        names.append(each.name)
        for part, tensor in weight.tensors.items():
            stored = artifact.checkpoint.tensor(weight.names[part])
            assert torch.equal(tensor, stored)
            held.append(tensor)  # so that no allocator has its memory again
    assert names == [each.name for each in weights]
    assert len(held) == 4 * LINEARS
    assert len({tensor.data_ptr() for tensor in held}) < LINEARS


def test_what_is_skipped_is_not_read(artifact: Declared) -> None:
    weights = list(stored_weights(artifact, None, lambda _: True))
    skipped = {each.name for each in weights[3:20]}
    read = read_in_turn(weights, artifact.checkpoint, skipped.__contains__)
    found = {each.name: weight for each, weight in read}
    assert len(found) == LINEARS
    assert {name for name, weight in found.items() if weight is None} == skipped
