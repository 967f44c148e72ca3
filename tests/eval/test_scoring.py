from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from quantkit.eval import scoring
from quantkit.eval.metric import Scores
from quantkit.eval.scoring import Side, score_tokens, self_divergence
from quantkit.eval.text import EvaluationText
from quantkit.grid.tiles import LOGIT_BYTES

VOCAB, PADDED, WIDTH, WINDOWS, LENGTH = 4096, 4160, 32, 5, 33
GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(PADDED, WIDTH, generator=GENERATOR) / 3
HIDDEN = torch.randn(WINDOWS, LENGTH - 1, WIDTH, generator=GENERATOR)
MOVED = HIDDEN + 0.1 * torch.randn(HIDDEN.shape, generator=GENERATOR)
TOKENS = torch.randint(0, VOCAB, (WINDOWS, LENGTH), generator=GENERATOR)

ROUNDED: dict[str, Any] = {"rtol": 1e-5, "atol": 0}
"""Of what a sum of fp32 logits in another order changes: a logit is below 16, its last bit 1e-6; KL
is 0.02, of which 3e-6 were seen on processors whose products depend on the width of a tile."""
Make = Callable[..., EvaluationText]


class Matrix:
    """A head that is a product with `weight` (vocabulary, width), in tiles or all at once."""

    def __init__(self, weight: torch.Tensor, *, tiled: bool) -> None:
        self.weight, self.tiled = weight, tiled
        self.asked: list[int] = []

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        self.asked.append(len(rows))
        return rows @ self.weight.T

    def is_product(self, rows: torch.Tensor) -> bool:
        assert len(rows) > 0
        return self.tiled

    def tiles(self, rows: torch.Tensor, vocabulary: int, width: int) -> Iterator[torch.Tensor]:
        assert self.tiled
        self.asked.append(len(rows))
        for part in torch.split(self.weight[:vocabulary], width):
            yield rows @ part.T


def side(
    hidden: torch.Tensor = HIDDEN, weight: torch.Tensor = WEIGHT, *, tiled: bool = True
) -> Side:
    return Side(lambda window, at: hidden[window, at], Matrix(weight, tiled=tiled), VOCAB)


@pytest.fixture
def scores(text_of_tokens: Make) -> Callable[..., Scores]:
    def make(model: torch.Tensor = MOVED, order: list[int] | None = None) -> Scores:
        chosen = order or list(range(WINDOWS))
        return score_tokens(
            text_of_tokens(TOKENS[chosen]), side(model[chosen]), side(HIDDEN[chosen])
        )

    return make


@pytest.mark.parametrize("tiled", [(True, True), (True, False), (False, False)])
def test_equals_the_straightforward_computation(
    text_of_tokens: Make, tiled: tuple[bool, bool]
) -> None:
    model, reference = side(MOVED, tiled=tiled[0]), side(tiled=tiled[1])
    found = score_tokens(text_of_tokens(TOKENS), model, reference)
    p, q = (torch.log_softmax((h @ WEIGHT[:VOCAB].T).double(), -1) for h in (HIDDEN, MOVED))
    nll = -q.gather(2, TOKENS[:, 1:, None])[..., 0]
    expected = {
        "kl": (p.exp() * (p - q)).sum(-1),
        "reverse_kl": (q.exp() * (q - p)).sum(-1),
        "nll": -p.gather(2, TOKENS[:, 1:, None])[..., 0],
        "confidence": p.exp().amax(-1),
        "agreement": (p.argmax(-1) == q.argmax(-1)).double(),
    }
    assert torch.allclose(found.nll.double(), nll.flatten(), **ROUNDED)
    assert set(found.beside) == set(expected)
    for name, values in expected.items():
        assert torch.allclose(found.beside[name].double(), values.flatten(), **ROUNDED), name
    assert found.document.tolist() == [i for i in range(WINDOWS) for _ in range(LENGTH - 1)]
    assert found.context.tolist() == list(range(1, LENGTH)) * WINDOWS


def test_junk_in_padding_rows_counts_nothing(text_of_tokens: Make) -> None:
    junk = WEIGHT.clone()
    junk[VOCAB:] = 50 * torch.randn(PADDED - VOCAB, WIDTH, generator=GENERATOR)
    found = score_tokens(text_of_tokens(TOKENS), side(weight=junk), side())
    assert found.beside["kl"].abs().max() == 0
    assert torch.equal(found.nll, found.beside["nll"])
    unmasked = Side(side(weight=junk).rows, side(weight=junk).head, PADDED)
    p, q = (s.log_probs(0, slice(0, 9)).exp()[:, :VOCAB].sum(1) for s in (side(), unmasked))
    assert p.min() > 0.999
    assert q.max() < 0.5


def test_only_the_scored_positions_are(text_of_tokens: Make, scores: Callable[..., Scores]) -> None:
    spans = ((4, 9), (0, 32), (31, 32), (8, 8), (16, 32))
    found = score_tokens(text_of_tokens(TOKENS, spans=spans), side(MOVED), side())
    kl = scores().beside["kl"].reshape(WINDOWS, -1)
    expected = torch.cat([kl[w, a:b] for w, (a, b) in enumerate(spans)])
    assert torch.allclose(found.beside["kl"], expected, **ROUNDED)
    assert found.context[:5].tolist() == [5, 6, 7, 8, 9]


def test_a_model_beside_itself_shows_nothing(scores: Callable[..., Scores]) -> None:
    found = scores(HIDDEN)
    assert found.beside["kl"].abs().max() == 0
    assert found.beside["agreement"].min() == 1
    assert self_divergence(side(), side(HIDDEN[:2, :20]), [(0, 20), (3, 20)]).abs().max() < 1e-9


def test_a_window_does_not_depend_on_its_place(scores: Callable[..., Scores]) -> None:
    order = [3, 0, 4, 1, 2]
    plain, moved = scores(), scores(order=order)
    for one, other in ((plain.nll, moved.nll), (plain.beside["kl"], moved.beside["kl"])):
        assert torch.equal(other.reshape(WINDOWS, -1), one.reshape(WINDOWS, -1)[order])


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("limit", [("LOGIT_BYTES", 4 * VOCAB * 5), ("POSITIONS", 5), ("WIDEST", 7)])
def test_the_size_of_slices_and_tiles_changes_nothing(
    text_of_tokens: Make, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int], tiled: bool
) -> None:
    def run() -> Scores:
        return score_tokens(text_of_tokens(TOKENS), side(MOVED, tiled=tiled), side(tiled=tiled))

    plain = run()
    monkeypatch.setattr(scoring, *limit)
    sliced = run()
    assert torch.allclose(sliced.nll, plain.nll, **ROUNDED)
    for name, values in plain.beside.items():
        assert torch.allclose(sliced.beside[name], values, **ROUNDED), name


def test_a_models_loss_does_not_depend_on_the_reference(text_of_tokens: Make) -> None:
    alone = score_tokens(text_of_tokens(TOKENS), side(MOVED))
    assert torch.equal(score_tokens(text_of_tokens(TOKENS), side(MOVED), side()).nll, alone.nll)


@pytest.mark.parametrize("vocab", [49_152, 262_144])
@pytest.mark.parametrize("tiled", [True, False])
def test_logits_in_memory_are_bounded(vocab: int, tiled: bool, text_of_tokens: Make) -> None:
    head = Matrix(torch.zeros(vocab, 4), tiled=tiled)
    text = text_of_tokens(torch.zeros(1, 512, dtype=torch.int64))
    score_tokens(text, Side(lambda _, at: torch.zeros(511, 4)[at], head, vocab))
    assert sum(head.asked) == 511
    assert max(head.asked) - min(head.asked) < len(head.asked)
    if tiled:
        assert head.asked == [511]
    else:
        assert max(head.asked) * vocab * 4 <= LOGIT_BYTES


def test_without_a_reference_there_is_only_likelihood(text_of_tokens: Make) -> None:
    found = score_tokens(text_of_tokens(TOKENS), side())
    assert found.nll.shape == (WINDOWS * (LENGTH - 1),)
    assert found.beside == {}
