"""Shrinkage of an expert's statistics: what it does to a Hessian, and that it falls with tokens."""

import torch

from quantkit.stats.experts import shrunk
from quantkit.stats.hessian import InputCollector
from quantkit.stats.inputs import InputStats

D = 32


def of(tokens: torch.Tensor) -> InputStats:
    collector = InputCollector()
    collector.add(tokens)
    return collector.finish()


def draw(count: int, seed: int) -> torch.Tensor:
    """Correlated tokens (count, D)."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(D, D, generator=torch.Generator().manual_seed(9))
    return torch.randn(count, D, generator=generator) @ mix


def error(found: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative distance of two Hessians of any number of tokens."""
    return float(
        (found / found.trace() - truth / truth.trace()).norm() * truth.trace() / truth.norm()
    )


def test_a_hessian_of_few_tokens_comes_nearer_to_that_of_many() -> None:
    truth = draw(100_000, 1)
    truth = truth.T @ truth
    layer = of(draw(400, 2))
    for count in (1, 4, 16):
        own = of(draw(count, 3))
        alone, helped = shrunk(own), shrunk(own, layer)
        assert alone is not None
        assert helped is not None
        assert error(helped.hessian, truth) < error(alone.hessian, truth)
        assert error(alone.hessian, truth) < error(own.hessian, truth)
        assert torch.linalg.eigvalsh(alone.hessian)[0] > 0
        assert helped.tokens == count
        assert (helped.absmax >= own.absmax).all()


def test_own_tokens_outweigh_the_layer() -> None:
    layer = of(draw(400, 2) * torch.linspace(0.1, 10, D))
    changes = []
    for count in (4, 40, 400, 4000):
        own = of(draw(count, 3))
        found = shrunk(own, layer)
        assert found is not None
        changes.append(float((found.hessian - own.hessian).norm() / own.hessian.norm()))
    assert changes == sorted(changes, reverse=True)
    assert changes[-1] < changes[0] / 300


def test_the_sum_is_that_of_d_tokens_of_the_layer() -> None:
    own, layer = of(draw(3, 3)), of(draw(2 * D, 2))
    found = shrunk(own, layer)
    isotropic = torch.eye(D) * layer.diagonal.mean() / 2
    assert found is not None
    torch.testing.assert_close(found.hessian, own.hessian + (layer.hessian + isotropic) / 3)


def test_without_own_tokens_the_layer_is_all_there_is() -> None:
    layer = of(draw(8, 2))
    found = shrunk(None, layer)
    assert found is not None
    assert found.tokens == layer.tokens
    assert torch.equal(found.hessian, shrunk(layer).hessian)  # type: ignore[union-attr]
    assert shrunk(None) is None


def test_nothing_is_modified() -> None:
    own, layer = of(draw(8, 3)), of(draw(8, 2))
    before = own.hessian.clone(), layer.hessian.clone()
    shrunk(own, layer)
    shrunk(own)
    assert torch.equal(own.hessian, before[0])
    assert torch.equal(layer.hessian, before[1])
