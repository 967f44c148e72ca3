from pathlib import Path

import pytest

from quantkit import quantize
from quantkit.calibration.tokens import load_tokenizer
from quantkit.eval.side_by_side import evaluate_models, read_reference
from quantkit.eval.text import EvaluationText, TextChoice
from quantkit.eval.triage import triage
from quantkit.eval.windows import read_text
from quantkit.model.embedded_model import FOLDER, HELDOUT
from quantkit.model.open import open_model
from quantkit.recipes.loader import build_recipe
from quantkit.results.schema import Triage

pytestmark = pytest.mark.long

SMALL = {"samples": 4, "sequence_length": 256, "group_size": 64}


@pytest.fixture(scope="module")
def text() -> EvaluationText:
    return read_text(TextChoice(str(HELDOUT), "qk@1", 256, 4), load_tokenizer(FOLDER))


def quantized(folder: Path, *settings: str, recipe: str = "rtn") -> Path:
    wanted = build_recipe(recipe, settings=settings, **SMALL)  # type: ignore[arg-type]
    return quantize(str(FOLDER), folder, recipe=wanted, evaluate=False).output


def shares(artifact: Path, text: EvaluationText) -> Triage:
    return triage(open_model(artifact), open_model(FOLDER), text)


def test_the_guilty_block_and_linear_are_found(tmp_path: Path, text: EvaluationText) -> None:
    """Block 2's down_proj alone at 2 bits, all the rest at 8."""
    path = tmp_path / "two.yaml"
    path.write_text(
        "extends: rtn\nformat: compressed-tensors\nscheme: {bits: 8}\n"
        "overrides:\n  - {match: '*.2.mlp.down_proj', bits: 2}\n"
    )
    found = shares(quantized(tmp_path / "out", recipe=str(path)), text)
    blocks = sorted(found.blocks, key=lambda share: share.only)
    assert blocks[-1].name == "model.layers.2"
    assert blocks[-1].only > 5 * blocks[-2].only
    assert blocks[-1].only == pytest.approx(found.whole, rel=0.1)
    least = min(found.blocks, key=lambda share: share.restored)
    assert least.name == "model.layers.2"
    assert least.restored < 0.2 * found.whole
    kinds = {share.name: share for share in found.kinds}
    assert len(kinds) == 7
    assert max(kinds.values(), key=lambda s: s.only) is kinds["mlp.down_proj"]
    assert min(kinds.values(), key=lambda s: s.restored) is kinds["mlp.down_proj"]


def test_the_whole_is_what_an_evaluation_finds(tmp_path: Path, text: EvaluationText) -> None:
    artifact = quantized(tmp_path / "out")
    found = shares(artifact, text)
    reference = read_reference(open_model(FOLDER), text)
    evaluated = evaluate_models(open_model(artifact), text, reference)
    assert evaluated.kl is not None
    assert found.whole == evaluated.kl.mean
    assert all(0 < share.only < found.whole for share in found.blocks)
    assert all(0 < share.restored < found.whole for share in found.blocks)


def test_folded_scales_leave_only_blocks(tmp_path: Path, text: EvaluationText) -> None:
    found = shares(quantized(tmp_path / "out", recipe="awq"), text)
    assert found.kinds == []
    assert len(found.blocks) == 6
