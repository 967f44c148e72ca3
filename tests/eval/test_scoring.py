import pytest
import torch

from quantkit.eval import scoring
from quantkit.eval.metric import Scores
from quantkit.eval.scoring import Side, score_tokens, self_divergence

VOCAB, WIDTH, WINDOWS, LENGTH = 4096, 32, 5, 33
GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(VOCAB, WIDTH, generator=GENERATOR) / 3
HIDDEN = torch.randn(WINDOWS, LENGTH, WIDTH, generator=GENERATOR)
MOVED = HIDDEN + 0.1 * torch.randn(HIDDEN.shape, generator=GENERATOR)
TOKENS = torch.randint(0, VOCAB, (WINDOWS, LENGTH), generator=GENERATOR)


def side(hidden: torch.Tensor = HIDDEN) -> Side:
    return Side(hidden, lambda rows: rows @ WEIGHT.T, VOCAB)


def scores(model: torch.Tensor = MOVED, order: list[int] | None = None) -> Scores:
    chosen = order or list(range(WINDOWS))
    return score_tokens(TOKENS[chosen], chosen, side(model[chosen]), side(HIDDEN[chosen]))


def test_equals_the_straightforward_computation() -> None:
    found = scores()
    p, q = (torch.log_softmax((h @ WEIGHT.T).double(), -1)[:, :-1] for h in (HIDDEN, MOVED))
    nll = -q.gather(2, TOKENS[:, 1:, None])[..., 0]
    assert torch.allclose(found.nll.double(), nll, atol=1e-5)
    assert found.kl is not None
    assert found.agreement is not None
    assert torch.allclose(found.kl.double(), (p.exp() * (p - q)).sum(-1), atol=1e-6)
    assert torch.equal(found.agreement.bool(), p.argmax(-1) == q.argmax(-1))


def test_a_model_beside_itself_shows_nothing() -> None:
    found = scores(HIDDEN)
    assert found.kl is not None
    assert found.kl.abs().max() == 0
    assert found.agreement is not None
    assert found.agreement.min() == 1
    assert self_divergence(side(), side(HIDDEN[:2, :20])).abs().max() < 1e-9


def test_a_window_does_not_depend_on_its_place() -> None:
    order = [3, 0, 4, 1, 2]
    plain, moved = scores(), scores(order=order)
    assert plain.kl is not None
    assert moved.kl is not None
    assert torch.equal(moved.nll, plain.nll[order])
    assert torch.equal(moved.kl, plain.kl[order])


def test_the_size_of_the_slices_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = scores()
    monkeypatch.setattr(scoring, "LOGIT_BYTES", 4 * VOCAB * 5)
    sliced = scores()
    assert plain.kl is not None
    assert sliced.kl is not None
    assert torch.allclose(sliced.nll, plain.nll, rtol=1e-6)
    assert torch.allclose(sliced.kl, plain.kl, rtol=1e-4, atol=1e-6)
    assert sliced.kl.mean().item() == pytest.approx(plain.kl.mean().item(), rel=1e-6)


@pytest.mark.parametrize("vocab", [49_152, 262_144])
def test_logits_in_memory_are_bounded(vocab: int) -> None:
    asked: list[int] = []

    def head(rows: torch.Tensor) -> torch.Tensor:
        asked.append(len(rows))
        return torch.zeros(len(rows), 2)

    tokens = torch.zeros(1, 512, dtype=torch.int64)
    score_tokens(tokens, [0], Side(torch.zeros(1, 512, 4), head, vocab))
    assert sum(asked) == 511
    assert max(asked) * vocab * 4 <= 64 << 20
    assert max(asked) - min(asked) < len(asked)


def test_without_a_reference_there_is_only_likelihood() -> None:
    found = score_tokens(TOKENS, range(WINDOWS), side())
    assert found.nll.shape == (WINDOWS, LENGTH - 1)
    assert (found.reference_nll, found.kl, found.agreement) == (None, None, None)
