import pytest
import torch

from quantkit.calibration.tokens import load_tokenizer
from quantkit.core.progress import Progress
from quantkit.eval import effort
from quantkit.eval.effort import Effort, announce, effort_seconds, triage_effort
from quantkit.eval.text import EvaluationText, TextChoice
from quantkit.eval.windows import read_text
from quantkit.model.embedded_model import FOLDER, HELDOUT
from quantkit.model.open import open_model
from quantkit.model.opened import OpenModel
from quantkit.planning.run.timing import MOST


@pytest.fixture(scope="module")
def model() -> OpenModel:
    return open_model(FOLDER)


@pytest.fixture(scope="module")
def text() -> EvaluationText:
    return read_text(TextChoice(str(HELDOUT), "qk@1", 256, 4), load_tokenizer(FOLDER))


def test_the_time_is_that_of_the_products(
    model: OpenModel, text: EvaluationText, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effort, "product_seconds", lambda _: 1e-9)
    monkeypatch.setattr(effort, "FEW", 0)
    least, most = effort_seconds(Effort(1, 0), model, text)
    blocks = sum(p.numel() for block in model.skeleton.blocks for p in block.parameters())
    assert most == pytest.approx(MOST * 1e-9 * blocks * text.inputs.numel())
    assert least < most
    head = effort_seconds(Effort(0, 2), model, text)[1]
    scored = sum(stop - start for start, stop in text.spans)
    width = model.config.hidden_size
    assert head == pytest.approx(MOST * 1e-9 * 2 * scored * width * text.vocabulary)


def test_only_what_takes_a_while_is_said(
    model: OpenModel, text: EvaluationText, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Progress] = []
    monkeypatch.setattr(effort, "product_seconds", lambda _: 1e-12)
    announce("evaluate", Effort(1, 1), model, text, seen.append)
    assert seen == []
    announce("evaluate", Effort(1000, 1), model, text, seen.append)
    (said,) = seen
    assert (said.stage, said.total) == ("evaluate", 1)
    assert "seconds" in said.detail
    assert f"{text.vocabulary:,} logits each" in said.detail


def test_the_effort_of_a_triage_is_that_of_its_variants() -> None:
    blocks, kinds = 6, 7
    runs = sum(2 * (index + 1) + 2 * kinds + 2 for index in range(blocks))
    assert triage_effort(blocks, kinds).passes == runs / blocks
    assert triage_effort(blocks, kinds).scorings == 2 * (2 * blocks + 2 * kinds + 1)


def test_a_product_takes_time() -> None:
    assert 0 < effort.product_seconds(torch.float32) < 1e-6
