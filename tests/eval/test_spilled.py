"""Hidden states that wait in a file give the figures of those that wait in memory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quantkit.checkpoint.spill import Spill
from quantkit.eval.side_by_side import evaluate_together
from quantkit.eval.text import EvaluationText
from quantkit.eval.triage import triage
from quantkit.model.batches import Room
from quantkit.model.open import open_model
from quantkit.model.opened import OpenModel
from tests.conftest import TinyCheckpoint

Make = Callable[..., EvaluationText]
TOKENS = torch.randint(2, 250, (9, 401), generator=torch.Generator().manual_seed(0))
FAMILIES = ["llama", "gemma3", "hybrid", "experts_fused"]


def pair(made: TinyCheckpoint, family: str, room: Room = list) -> tuple[OpenModel, OpenModel]:
    """Two models of a family that know nothing of each other."""
    models = (open_model(made(family, dtype="bfloat16", seed=seed)) for seed in (0, 1))
    one, other = (replace(model, room=room) for model in models)
    return one, other


@pytest.mark.parametrize("family", FAMILIES)
def test_an_evaluation_has_the_same_figures(
    tiny_checkpoint: TinyCheckpoint, text_of_tokens: Make, tmp_path: Path, family: str
) -> None:
    text = text_of_tokens(TOKENS)
    spill = Spill(tmp_path)
    found, _ = evaluate_together(*pair(tiny_checkpoint, family), text)
    again, _ = evaluate_together(*pair(tiny_checkpoint, family, spill.batches), text)
    assert again.to_dict() == found.to_dict()
    assert found.kl is not None
    assert found.kl.mean is not None
    assert found.kl.mean > 0
    states = 2 * TOKENS[:, 1:].numel()
    assert spill._end > states  # both models' numbers, of two bytes each, lay there


def test_a_triage_has_the_same_shares(
    tiny_checkpoint: TinyCheckpoint, text_of_tokens: Make, tmp_path: Path
) -> None:
    text = text_of_tokens(TOKENS[:3])
    found = triage(*pair(tiny_checkpoint, "llama"), text)
    assert triage(*pair(tiny_checkpoint, "llama", Spill(tmp_path).batches), text) == found
    assert found.whole > 0
