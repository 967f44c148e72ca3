"""Heads of models that share a skeleton."""

from collections.abc import Callable
from pathlib import Path

import torch

from quantkit.model.open import open_model


def test_models_that_share_a_skeleton_take_turns(tiny_checkpoint: Callable[..., Path]) -> None:
    """Also where both heads are in use, in fp32 and in bf16."""
    one, other = (tiny_checkpoint("llama_tied", dtype="bfloat16", seed=seed) for seed in (0, 1))
    model = open_model(one)
    shared = open_model(other, skeleton=model.skeleton)
    ids = torch.arange(64).view(2, 32)
    apart = [open_model(folder) for folder in (one, other)]
    steps = zip(model.walk(ids), shared.walk(ids), strict=True)
    *_, found = ([torch.cat(list(side)) for side in sides] for sides in steps)
    expected = [model.hidden_states(ids) for model in apart]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    heads = [model.head(), shared.head()]
    for _ in range(2):
        for head, alone, hidden in zip(heads, apart, expected, strict=True):
            assert torch.equal(head(hidden[0]), alone.head()(hidden[0]))
    assert all(p.is_meta for p in model.skeleton.model.parameters())
