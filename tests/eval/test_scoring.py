from collections.abc import Callable

import pytest
import torch

from quantkit.eval import scoring
from quantkit.eval.metric import Scores
from quantkit.eval.scoring import Side, score_tokens, self_divergence
from quantkit.eval.text import EvaluationText

VOCAB, PADDED, WIDTH, WINDOWS, LENGTH = 4096, 4160, 32, 5, 33
GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(PADDED, WIDTH, generator=GENERATOR) / 3
HIDDEN = torch.randn(WINDOWS, LENGTH - 1, WIDTH, generator=GENERATOR)
MOVED = HIDDEN + 0.1 * torch.randn(HIDDEN.shape, generator=GENERATOR)
TOKENS = torch.randint(0, VOCAB, (WINDOWS, LENGTH), generator=GENERATOR)

Make = Callable[..., EvaluationText]


def side(hidden: torch.Tensor = HIDDEN, weight: torch.Tensor = WEIGHT) -> Side:
    return Side(lambda window, at: hidden[window, at], lambda rows: rows @ weight.T, VOCAB)


@pytest.fixture
def scores(text_of_tokens: Make) -> Callable[..., Scores]:
    def make(model: torch.Tensor = MOVED, order: list[int] | None = None) -> Scores:
        chosen = order or list(range(WINDOWS))
        return score_tokens(
            text_of_tokens(TOKENS[chosen]), side(model[chosen]), side(HIDDEN[chosen])
        )

    return make


def test_equals_the_straightforward_computation(scores: Callable[..., Scores]) -> None:
    found = scores()
    p, q = (torch.log_softmax((h @ WEIGHT[:VOCAB].T).double(), -1) for h in (HIDDEN, MOVED))
    nll = -q.gather(2, TOKENS[:, 1:, None])[..., 0]
    expected = {
        "kl": (p.exp() * (p - q)).sum(-1),
        "reverse_kl": (q.exp() * (q - p)).sum(-1),
        "nll": -p.gather(2, TOKENS[:, 1:, None])[..., 0],
        "confidence": p.exp().amax(-1),
        "agreement": (p.argmax(-1) == q.argmax(-1)).double(),
    }
    assert torch.allclose(found.nll.double(), nll.flatten(), atol=1e-5)
    assert set(found.beside) == set(expected)
    for name, values in expected.items():
        assert torch.allclose(found.beside[name].double(), values.flatten(), atol=1e-5), name
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
    assert torch.allclose(found.beside["kl"], expected, rtol=1e-4, atol=1e-7)
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


def test_the_size_of_the_slices_changes_nothing(
    scores: Callable[..., Scores], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = scores()
    monkeypatch.setattr(scoring, "LOGIT_BYTES", 4 * VOCAB * 5)
    sliced = scores()
    assert torch.allclose(sliced.nll, plain.nll, rtol=1e-6)
    assert torch.allclose(sliced.beside["kl"], plain.beside["kl"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("vocab", [49_152, 262_144])
def test_logits_in_memory_are_bounded(vocab: int, text_of_tokens: Make) -> None:
    asked: list[int] = []

    def head(rows: torch.Tensor) -> torch.Tensor:
        asked.append(len(rows))
        return torch.zeros(len(rows), 2)

    text = text_of_tokens(torch.zeros(1, 512, dtype=torch.int64))
    score_tokens(text, Side(lambda _, at: torch.zeros(511, 4)[at], head, vocab))
    assert sum(asked) == 511
    assert max(asked) * vocab * 4 <= 64 << 20
    assert max(asked) - min(asked) < len(asked)


def test_without_a_reference_there_is_only_likelihood(text_of_tokens: Make) -> None:
    found = score_tokens(text_of_tokens(TOKENS), side())
    assert found.nll.shape == (WINDOWS * (LENGTH - 1),)
    assert found.beside == {}
