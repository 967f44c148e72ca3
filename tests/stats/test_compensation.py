"""Weights that make up for moved inputs: least squares, and nothing where nothing has moved."""

import pytest
import torch

from quantkit.stats.compensation import DAMP, compensated
from quantkit.stats.hessian import InputCollector
from quantkit.stats.inputs import InputStats

ROWS, FEATURES = 8, 24


def statistics(inputs: torch.Tensor, originals: torch.Tensor) -> InputStats:
    collector = InputCollector()
    collector.add(inputs, originals)
    return collector.finish()


def samples(seed: int, noise: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A weight, inputs, and original inputs that differ from them by so much."""
    made = torch.Generator().manual_seed(seed)
    weight = torch.randn(ROWS, FEATURES, generator=made)
    mixed = torch.randn(FEATURES, FEATURES, generator=made)
    originals = torch.randn(3, 700, FEATURES, generator=made) @ mixed
    inputs = 0.9 * originals + noise * torch.randn(originals.shape, generator=made)
    return weight, inputs, originals


def test_nothing_moves_where_the_inputs_are_the_original_ones() -> None:
    weight, inputs, _ = samples(0, 0.5)
    stats = statistics(inputs, inputs)
    assert stats.drift is not None
    assert not stats.drift.any()
    assert torch.equal(compensated([weight], stats)[0], weight)


def test_without_originals_weights_stay() -> None:
    weight, inputs, _ = samples(0, 0.5)
    collector = InputCollector()
    collector.add(inputs)
    (same,) = compensated([weight], collector.finish())
    assert same is weight


def test_outputs_are_the_nearest_to_the_original_ones() -> None:
    for seed in range(5):
        weight, inputs, originals = samples(seed, 0.5)
        stats = statistics(inputs, originals)
        (moved,) = compensated([weight], stats)
        x, o = inputs.flatten(0, 1).double(), originals.flatten(0, 1).double()
        damped = x.T @ x
        unit = DAMP * damped.diagonal().mean()
        damped += unit * torch.eye(FEATURES)
        # Ridge regression around the weight: nothing else has so little error and move together.
        move = torch.linalg.solve(damped, x.T @ (o - x)).T
        explained, left = (move * ((o - x).T @ x)).sum(), (o - x).square().sum()
        f = (explained / FEATURES) / ((left - explained) / (len(x) - FEATURES))
        best = weight + weight.double() @ move * (1 - 1 / f)
        torch.testing.assert_close(moved.double(), best, rtol=1e-3, atol=1e-4)
        before = (x @ weight.double().T - o @ weight.double().T).square().sum()
        after = (x @ moved.double().T - o @ weight.double().T).square().sum()
        assert after < 0.7 * before


@pytest.mark.parametrize("tokens", [70, 128, 250, 1000])
def test_few_tokens_teach_no_noise(tokens: int) -> None:
    """Inputs that have moved by nothing but noise: a move can only cost, on other tokens."""
    made = torch.Generator().manual_seed(2)
    features, weight = 64, torch.randn(16, 64, generator=made)

    def drawn(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(1, tokens, features, generator=made)
        return inputs, inputs + 0.3 * torch.randn(inputs.shape, generator=made)

    (moved,) = compensated([weight], statistics(*drawn(tokens)))
    x, o = (each[0] for each in drawn(20_000))
    before = (x @ weight.T - o @ weight.T).square().mean()
    after = (x @ moved.T - o @ weight.T).square().mean()
    assert after < 1.02 * before  # with least squares 1.7 times for 128 tokens, 1.06 for 1000


def test_no_more_tokens_than_inputs_move_nothing() -> None:
    weight, inputs, originals = samples(1, 0.5)
    few = statistics(inputs[:1, :FEATURES], originals[:1, :FEATURES])
    assert compensated([weight], few)[0] is weight


def test_inputs_without_a_factor_leave_weights_as_they_are() -> None:
    weight, inputs, originals = samples(1, 0.5)
    (same,) = compensated([weight], statistics(inputs * 0, originals))
    assert same is weight
