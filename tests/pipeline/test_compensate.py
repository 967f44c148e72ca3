"""Compensation: later linears make up for the errors of earlier ones."""

from pathlib import Path

import pytest
import torch

from quantkit.checkpoint.writer import ArtifactWriter
from quantkit.core.errors import InputError
from quantkit.model.open import open_model
from quantkit.model.opened import OpenModel
from quantkit.pipeline.build import build
from quantkit.pipeline.start import start
from quantkit.pipeline.write import planned_tensors
from quantkit.recipes.loader import build_recipe
from tests.conftest import TinyCheckpoint

IDS = torch.randint(2, 250, (8, 128), generator=torch.Generator().manual_seed(0))


def made(source: Path, folder: Path, method: str, *, compensate: bool) -> OpenModel:
    """The artifact of a method at 3 bits, calibrated on IDS."""
    settings = [f"calibration.compensate={str(compensate).lower()}", "scheme.bits=3"]
    recipe = build_recipe(method, samples=8, format="compressed-tensors", settings=settings)
    prepared = start(open_model(source), recipe)
    specs = planned_tensors(prepared.model, prepared.plan.schemes, prepared.format)
    with ArtifactWriter(folder, specs, 1 << 30) as writer:
        build(prepared, writer, IDS)
        writer.publish()
    return open_model(folder)


def output(model: OpenModel) -> torch.Tensor:
    """What the last block makes of IDS."""
    *_, last = (torch.cat(list(batches)) for batches in model.walk(IDS))
    return last.double()


@pytest.mark.parametrize(
    ("family", "method"), [("llama", "gptq"), ("llama", "rtn"), ("phi", "awq")]
)
def test_the_model_comes_nearer_to_the_original(
    tiny_checkpoint: TinyCheckpoint, tmp_path: Path, family: str, method: str
) -> None:
    source = Path(tiny_checkpoint(family))
    original = output(open_model(source))
    plain = made(source, tmp_path / "plain", method, compensate=False)
    moved = made(source, tmp_path / "moved", method, compensate=True)
    errors = [(output(model) - original).square().sum() for model in (plain, moved)]
    assert errors[1] < 0.95 * errors[0]
    first = "model.layers.0.self_attn.q_proj"  # its inputs are those of the original
    assert torch.equal(moved.qtensor(first).codes, plain.qtensor(first).codes)


def test_without_calibration_there_is_nothing_to_compare() -> None:
    with pytest.raises(InputError, match="compensate"):
        build_recipe("rtn", samples=0, settings=["calibration.compensate=true"])
